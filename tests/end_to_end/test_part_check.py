"""`t2x test-part`: a part of the library or of the user's own through the contracts."""

import pytest

from t2x.cli import main
from t2x.contracts import CONTRACTS

OWN = """
from t2x.layers import FeedForward, Linear, Result, lecun_normal

class Shifted(FeedForward):
  def __init__(self, d_model: int, *, shift: int = 1, rngs):
    self.up = Linear((d_model,), (d_model,), ('embed', 'mlp'), init=lecun_normal(), rngs=rngs)
    self.shift = shift

  def __call__(self, x, call, cache=None):
    return Result(self.up(x) + x[:, ::-1] * self.shift)
"""


@pytest.mark.slow
def test_a_part_of_ones_own_is_tested_and_its_broken_contracts_are_named(
  tmp_path, monkeypatch, capsys
):
  (tmp_path / 'own_parts_to_test.py').write_text(OWN)
  monkeypatch.chdir(tmp_path)
  arguments = ['test-part', 'own_parts_to_test.Shifted', '--trust']
  assert main([*arguments, '--gin.Shifted.shift=0']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert [line[16:] for line in lines] == list(CONTRACTS)
  assert main(arguments) == 1
  assert 'failed          tokens are independent: ' in capsys.readouterr().out


def test_a_part_that_cannot_be_built_is_one_line(capsys):
  assert main(['test-part', 'MultiHeadAttention']) == 2
  assert capsys.readouterr().err.startswith(
    't2x: MultiHeadAttention: MultiHeadAttention needs a value for num_heads'
  )
  assert main(['test-part', 'no_such_module.Part']) == 2
  assert "no module named 'no_such_module'" in capsys.readouterr().err
