"""`t2x test-part`: a part of the library or of the user's own through the contracts."""

import pytest

from t2x.cli import main
from t2x.testing.contracts import CONTRACTS

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
def test_a_user_part_is_tested_and_its_broken_contracts_are_named(tmp_path, monkeypatch, capsys):
  (tmp_path / 'own_parts_to_test.py').write_text(OWN)
  monkeypatch.chdir(tmp_path)
  arguments = ['test-part', 'own_parts_to_test.Shifted', '--trust']
  assert main([*arguments, '--gin.Shifted.shift=0']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert [line[16:].partition(' (')[0] for line in lines] == list(CONTRACTS)
  # Each contract that does not apply has a reason.
  reasons = {line[16:].rstrip(')') for line in lines if line.startswith('not applicable')}
  assert reasons == {
    'outputs ignore later tokens (the part reads no pattern',
    'sums over time in bfloat16 are close (its gradients have no loop over time',
    'devices change nothing (one device: JAX_NUM_CPU_DEVICES=8',
  }
  assert main(arguments) == 1
  assert 'failed          tokens are independent: ' in capsys.readouterr().out


WRONG = """
from flax import nnx

class NoMembers(nnx.Module):
  def __init__(self, d_model: int, *, rngs): ...

class NoLength(NoMembers):
  reads = frozenset()
  def init_cache(self, batch, num_slots, dtype): ...
  def __call__(self, x, call, cache=None): ...

class BeforeTheStar(NoLength):
  max_length = None
  def __init__(self, d_model: int, hidden_dim: int, *, rngs): ...
"""


@pytest.fixture(scope='module')
def wrong_parts(tmp_path_factory):
  """The folder of the module wrong_parts."""
  folder = tmp_path_factory.mktemp('parts')
  (folder / 'wrong_parts.py').write_text(WRONG)
  return folder


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['wrong_parts.NoMembers'], 'NoMembers has no reads, max_length, init_cache and __call__'),
    (['wrong_parts.NoLength'], 'NoLength has no max_length'),
    (['wrong_parts.BeforeTheStar'], "missing 1 required positional argument: 'hidden_dim'"),
    (['wrong_parts.BeforeTheStar', '--gin.BeforeTheStar.hidden_dim=8'],
     'remove this binding; a setting of a part of your own stands after `*`'),
    (['PreNorm'], 'a Sublayer (@Name), but @PreNorm builds a PreNorm: PreNorm is a BranchWiring'),
    (['Causal'], 'must be a part that builds a Sublayer (@Name), but @Causal builds a Causal'),
    (['TokenEmbedding', '--gin.TokenEmbedding.vocab_size=8'], 'TokenEmbedding is a TextEmbedding'),
    (['gelu'], 'must be a part that builds a Sublayer'),
    (['gelu'], 'as MLP takes --gin.MLP.activation=@gelu'),
    (['Causal'], 'a Pattern is checked in a config that sets Block.pattern: t2x check CONFIG'),
    (['TokenEmbedding', '--gin.TokenEmbedding.vocab_size=8'], 'a TextEmbedding is checked in a config that sets'),
    (['BilinearScores'], 't2x test-part MultiHeadAttention --gin.MultiHeadAttention.scores=@BilinearScores'),
    (['RoPE'], '--gin.MultiHeadAttention.num_heads=4 --encoding RoPE'),
    (['MLP', '--gin.MLP.hidden_dim=8', '--encoding', 'LayerNorm'], 'builds a PositionEncoding (@Name), but'),
    ([''], "'' is not the name of a part"),
    (['MLP', '--gin.MLP.hidden_dim=8', '--encoding', ''], "'' is not the name of a part"),
    (['@MLP'], "'@MLP' is not the name of a part"),
  ],
)  # fmt: skip
def test_an_object_that_is_no_sublayer_is_a_one_line_error(
  wrong_parts, monkeypatch, capsys, arguments, message
):
  monkeypatch.chdir(wrong_parts)
  assert main(['test-part', *arguments, '--trust']) == 2
  out, err = capsys.readouterr()
  assert (out, err.count('\n')) == ('', 1), err
  assert message in err


def test_the_width_must_be_positive(capsys):
  with pytest.raises(SystemExit) as end:
    main(['test-part', 'MLP', '--d-model', '0'])
  assert end.value.code == 2
  assert 'argument --d-model: must be' in capsys.readouterr().err


def test_a_part_that_cannot_be_built_is_one_line(capsys):
  assert main(['test-part', 'MultiHeadAttention']) == 2
  assert capsys.readouterr().err.startswith(
    't2x: MultiHeadAttention: MultiHeadAttention needs a value for num_heads'
  )
  assert main(['test-part', 'no_such_module.Part']) == 2
  assert "no module named 'no_such_module'" in capsys.readouterr().err


OWN_ENCODING = """
from t2x.layers import PositionEncoding

class Far(PositionEncoding):
  def __init__(self, d_model: int, *, slope: float, rngs):
    self.slope = slope
"""


def test_an_encoding_of_the_user_is_checked_with_its_settings(tmp_path, monkeypatch, capsys):
  (tmp_path / 'own_encoding_to_test.py').write_text(OWN_ENCODING)
  monkeypatch.chdir(tmp_path)
  own = ['own_encoding_to_test.Far', '--gin.Far.slope=2.0', '--trust']
  assert main(['test-part', *own]) == 2
  assert (
    'An encoding is checked in a layer: t2x test-part MultiHeadAttention' in capsys.readouterr().err
  )
  built = []
  monkeypatch.setattr('t2x.testing.subject.Subject', lambda *arguments: built.append(arguments))
  monkeypatch.setattr('t2x.testing.contracts.check_part', lambda subject: [])
  layer = ['MultiHeadAttention', '--gin.MultiHeadAttention.num_heads=2']
  assert main(['test-part', *layer, '--encoding', *own]) == 0
  [(_, width, encode)] = built
  assert encode(width, rngs=None).slope == 2.0


OWN_ERRORS = """
from t2x.layers import PositionEncoding

class ReadsShape(PositionEncoding):
  def __init__(self, d_model: int, *, rngs): ...

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    return q.shape

class Unset(PositionEncoding):
  def __init__(self, d_model: int, *, rngs):
    self.slope = self.none
"""


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('ReadsShape', "ReadsShape.scores (own_errors.py:8): AttributeError: 'NoneType' object has no attribute 'shape'"),
    ('Unset', "Unset.__init__ (own_errors.py:12): AttributeError: 'Unset' object has no attribute 'none'"),
  ],
)  # fmt: skip
def test_an_error_in_a_module_of_the_user_names_its_line(
  tmp_path, monkeypatch, capsys, name, message
):
  (tmp_path / 'own_errors.py').write_text(OWN_ERRORS)
  monkeypatch.chdir(tmp_path)
  layer = ['MultiHeadAttention', '--gin.MultiHeadAttention.num_heads=2']
  assert main(['test-part', *layer, '--encoding', f'own_errors.{name}', '--trust']) == 2
  assert capsys.readouterr().err.startswith(f't2x: {message}')


def test_a_part_without_its_module_is_named_with_it(tmp_path, monkeypatch, capsys):
  (tmp_path / 'own_unnamed_parts.py').write_text(OWN_ERRORS + OWN)
  monkeypatch.chdir(tmp_path)
  assert main(['test-part', 'Shifted']) == 2
  expected = 't2x: own_unnamed_parts.py defines {0}: write own_unnamed_parts.{0}\n'
  assert capsys.readouterr().err == expected.format('Shifted')
  layer = ['MultiHeadAttention', '--gin.MultiHeadAttention.num_heads=2']
  assert main(['test-part', *layer, '--encoding', 'ReadsShape']) == 2
  assert capsys.readouterr().err == expected.format('ReadsShape')


INDICES = """
import jax.numpy as jnp
from t2x.layers import PositionEncoding

class Indices(PositionEncoding):
  def __init__(self, d_model: int, *, rngs): ...

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    queries, keys = (jnp.arange(tokens.positions.shape[1]) for tokens in (q_tokens, k_tokens))
    return -0.5 * jnp.abs(queries[:, None] - keys).astype(jnp.float32)[None, None]
"""


def test_an_encoding_that_uses_indices_is_advised_to_use_positions(tmp_path, monkeypatch, capsys):
  (tmp_path / 'own_indices.py').write_text(INDICES)
  monkeypatch.chdir(tmp_path)
  contract = 'decoding equals the forward pass'
  monkeypatch.setattr('t2x.testing.contracts.CONTRACTS', {contract: CONTRACTS[contract]})
  layer = ['MultiHeadAttention', '--gin.MultiHeadAttention.num_heads=1']
  assert main(['test-part', *layer, '--encoding', 'own_indices.Indices', '--trust']) == 1
  (line,) = capsys.readouterr().out.splitlines()
  assert line.startswith(f'failed          {contract}: tokens ')
  assert line.endswith('; if an encoding causes it, use the positions of q_tokens, not indices')
