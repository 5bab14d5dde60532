"""Parts written for an earlier interface are refused in configs, with the first member or argument that they lack."""

from pathlib import Path

import pytest

from t2x.base.errors import UserError
from t2x.experiments import read_config

PARTS = """
from flax import nnx
from t2x.layers import DotProduct, MultiHeadAttention, Tokens, ValueResidual


class Part(nnx.Module):
  reads, max_length = frozenset({'q', 'k', 'scale'}), None

  def __init__(self, *sizes, rngs):
    pass


class OlderScores(Part):
  def __call__(self, q, k, q_tokens, k_tokens, *, scale):
    return DotProduct(q, k, scale)


class OlderHeadOutputs(Part):
  shape = None

  def __call__(self, y, inputs):
    return y


class ShapelessHeadOutputs(Part):
  def __call__(self, y, x, call):
    return y


class OtherName(Part):
  shape = None

  def __call__(self, y, inputs, call):
    return y


class OlderValues(ValueResidual):
  def __call__(self, v, extras):
    return v, extras


class OlderMerge(Part):
  num_merged, keeps_tokens, output_dim = 2, False, 16

  def __call__(self, x, tokens):
    return x[:, ::2], Tokens.row(x.shape[1] // 2)


class OlderMixer(MultiHeadAttention):
  def init_cache(self, batch, num_slots, dtype):
    return super().init_cache(batch, num_slots, dtype)


class OlderRouter(Part):
  def __call__(self, x, call):
    return None


class OlderWiring(Part):
  ends_with_norm, num_streams = False, 2

  def __call__(self, x, sublayer, key=None, keep=None):
    return sublayer(x)


class OlderPatches(Part):
  def __call__(self, images, tokens=None):
    return images.reshape(len(images), 4, -1), Tokens.row(4)
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
  """Reads a config that binds a part of `PARTS`."""
  monkeypatch.chdir(tmp_path)
  Path('older_parts.py').write_text(PARTS)

  def config(parameter, part):
    Path('part.gin').write_text(f'import older_parts\n{parameter} = @{part}\n')
    root = parameter.split('.')[0]
    return read_config(['part.gin'], root=f'@{root}')

  return config


@pytest.mark.parametrize(
  ('parameter', 'part', 'error'),
  [
    (
      'MultiHeadAttention.scores',
      'OlderScores',
      r'OlderScores.__call__ cannot be called as \(q, k, q_tokens, k_tokens, scale=, call=\): '
      "got an unexpected keyword argument 'call'",
    ),
    (
      'MultiHeadAttention.head_outputs',
      'OlderHeadOutputs',
      r'OlderHeadOutputs.__call__ cannot be called as \(y, x, call\): too many positional arguments',
    ),
    ('MultiHeadAttention.head_outputs', 'ShapelessHeadOutputs', 'has no shape'),
    (
      'MultiHeadAttention.values',
      'OlderValues',
      r"OlderValues.__call__ cannot be called as \(v, call\): its argument 'extras' must be named 'call'",
    ),
    (
      'Stages.merge',
      'OlderMerge',
      r"called as \(x, call\): its argument 'tokens' must be named 'call'",
    ),
    ('Block.mixer', 'OlderMixer', r'called as \(batch, num_slots, dtype, source\): too many pos'),
    ('MixtureOfExperts.router', 'OlderRouter', 'OlderRouter has no is_causal and num_choices'),
    ('Block.wiring', 'OlderWiring', 'OlderWiring has no ends'),
    ('VisionTransformer.embedding', 'OlderPatches', 'OlderPatches has no input and num_extra'),
  ],
)
def test_a_part_of_an_earlier_interface_is_refused_in_one_line_with_what_it_lacks(
  read, parameter, part, error
):
  with pytest.raises(UserError, match=error) as raised:
    read(parameter, part)
  (line,) = [line for line in str(raised.value).splitlines() if part in line]
  assert line.startswith('part.gin:2: ')


def test_arguments_but_the_call_may_have_other_names(read):
  with pytest.raises(UserError) as raised:
    read('MultiHeadAttention.head_outputs', 'OtherName')
  assert 'OtherName' not in str(raised.value)  # Only the number of heads is missing.
