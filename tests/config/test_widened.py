"""Parts written before an interface gained an argument, in configs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.experiments import read_config
from t2x.layers import Call, Causal, Slots, Source, Tokens

X = jax.random.normal(jax.random.key(0), (2, 5, 8))
PARTS = """
import dataclasses

import jax
from flax import nnx
from t2x.layers import (
  DotProduct, DotProductScores, Full, MultiHeadAttention, Result, SourceCache, Tokens, ValueResidual
)
from t2x.models import Stack


class Scores(nnx.Module):
  reads, max_length = frozenset({'q', 'k', 'scale'}), None

  def __init__(self, num_heads, head_dim, *, factor=2.0, rngs):
    self.factor = factor

  def __call__(self, q, k, q_tokens, k_tokens, *, scale):
    return DotProduct(q, k, self.factor * scale)


class NewScores(Scores):
  def __call__(self, q, k, q_tokens, k_tokens, *, scale, call):
    return DotProduct(q, k, self.factor * scale * call.step)


class HeadOutputs(nnx.Module):
  def __init__(self, d_model, num_heads, head_dim, *, rngs):
    pass

  def __call__(self, y, inputs):
    return y * inputs[..., :1, None]


class OtherName(HeadOutputs):
  def __call__(self, y, inputs, context):
    return y * inputs[..., :1, None] * context.step


class Values(ValueResidual):
  def __call__(self, v, extras):
    return 2 * v, extras


class Halving(nnx.Module):
  num_merged = 2
  output_dim: int

  def __init__(self, d_model, *, rngs):
    self.output_dim = 2 * d_model

  def __call__(self, x, tokens):
    half = x.shape[1] // 2
    return x[:, :2 * half].reshape(len(x), half, -1), Tokens.row(half)


class Mixer(MultiHeadAttention):
  def init_cache(self, batch, num_slots, dtype):
    return super().init_cache(batch, num_slots, dtype)


class Cross(nnx.Module):
  reads, max_length = frozenset({'source'}), None

  def __init__(self, d_model, *, rngs):
    pass

  def init_cache(self, batch, num_slots, dtype):
    return None

  def source_cache(self, source):
    return SourceCache.of(None, source.x[:, :, None])

  def __call__(self, x, call, cache=None):
    _, v = (self.source_cache(call.source) if cache is None else cache).keys_and_values()
    return Result(x * v.mean(axis=1), cache)


class Layer(nnx.Module):
  pattern, max_length, wirings, num_streams = Full(), None, {}, 1
  reads = frozenset({'pattern', 'source'})

  def __init__(self, d_model, *, rngs):
    self.own, self.other = MultiHeadAttention(d_model, num_heads=2, rngs=rngs), Cross(d_model, rngs=rngs)

  def init_cache(self, batch, num_slots, dtype):
    return {'own': self.own.init_cache(batch, num_slots, dtype)}

  def source_cache(self, source):
    return {'other': self.other.source_cache(source)}

  def __call__(self, x, call, cache=None):
    old, source = cache or {}, call.source
    own = self.own(x, dataclasses.replace(call, source=None), old.get('own'))
    other = self.other(x + own.x, call, old.get('other'))
    return Result(x + other.x, cache and {'own': own.cache, 'other': other.cache})


class Layers(Stack):
  def init_cache(self, batch, num_slots, dtype):
    return super().init_cache(batch, num_slots, dtype)

  def source_cache(self, source):
    return [jax.vmap(lambda layer: layer.source_cache(source))(block) for block in self.blocks]


class Wrong(HeadOutputs):
  def __call__(self, y):
    return y


class Streams(nnx.Module):
  ends_with_norm, num_streams = False, 2

  def __init__(self, d_model, *, rngs):
    pass

  def __call__(self, x, sublayer, key=None, keep=None):
    result = sublayer(x[:, :, 0])
    return dataclasses.replace(result, x=x + result.x[:, :, None])
"""

EMBEDDER = """
from flax import nnx
from t2x.layers import Tokens


class OlderPatches(nnx.Module):
  def __init__(self, d_model, *, rngs):
    pass

  def __call__(self, images, tokens=None):
    return images.reshape(len(images), 4, -1), Tokens.row(4)
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('parts')
  (path / 'older_parts.py').write_text(PARTS)
  return path


@pytest.fixture
def attend(folder, monkeypatch):
  """Returns the output of attention with these bindings."""
  monkeypatch.chdir(folder)

  def output(*bindings, step=3):
    text = '\n'.join(['import older_parts', 'MultiHeadAttention.num_heads = 2', *bindings])
    (folder / 'part.gin').write_text(text)
    part = read_config(['part.gin'], root='@MultiHeadAttention').build()(8, rngs=nnx.Rngs(0))
    return np.asarray(part(X, Call(Tokens.row(5), Causal(), step=step)).x)

  return output


def test_scores_without_call_are_called_without_it(attend):
  plain = attend('MultiHeadAttention.scale = 1.0')
  older = attend('MultiHeadAttention.scores = @Scores', 'MultiHeadAttention.scale = 0.5')
  np.testing.assert_array_equal(older, plain)
  bound = attend('MultiHeadAttention.scores = @Scores', 'Scores.factor = 4.0')
  np.testing.assert_allclose(bound, attend('MultiHeadAttention.scale = 2.0'), rtol=1e-6)


def test_scores_with_call_get_it(attend):
  settings = 'MultiHeadAttention.scores = @NewScores', 'MultiHeadAttention.scale = 0.5'
  np.testing.assert_array_equal(attend(*settings, step=1), attend('MultiHeadAttention.scale = 1.0'))
  assert np.abs(attend(*settings, step=3) - attend(*settings, step=1)).max() > 1e-3


def test_head_outputs_without_call_are_called_without_it(attend):
  older = attend('MultiHeadAttention.head_outputs = @HeadOutputs', step=3)
  other = attend('MultiHeadAttention.head_outputs = @OtherName', step=3)
  np.testing.assert_allclose(3 * older, other, rtol=1e-5)


def test_values_that_take_extras_get_those_of_the_call(attend):
  doubled = attend('MultiHeadAttention.values = @Values')
  np.testing.assert_allclose(doubled, 2 * attend(), rtol=1e-6)


def test_a_merge_of_tokens_becomes_one_of_the_call(attend):
  """`(x, tokens) -> (x, tokens)` before `(x, call) -> Result`; such a merge is not known to keep the tokens."""
  bindings = ['import older_parts', 'Stages.stages = [@Stack, @Stack]', 'Stages.merge = @Halving']
  bindings += ['Stack.num_layers = 1', 'MultiHeadAttention.num_heads = 2', 'MLP.hidden_dim = 8']
  Path('merge.gin').write_text('\n'.join(bindings))
  stages = read_config(['merge.gin'], root='@Stages').build()(8, rngs=nnx.Rngs(0))
  first, second = stages.stages
  result = stages(X, Call(Tokens.row(5)))
  y = first(X, Call(Tokens.row(5))).x[:, :4].reshape(2, 2, 16)
  np.testing.assert_allclose(result.x, second(y, Call(Tokens.row(2))).x, rtol=1e-6)
  assert result.tokens.positions.shape == (1, 2)
  with pytest.raises(UserError, match='@Halving changes the tokens'):
    stages.init_cache(1, 4, np.float32)


def test_sublayers_without_a_source_in_init_cache_decode_and_keep_their_source_cache(
  folder, monkeypatch
):
  monkeypatch.chdir(folder)
  bindings = (
    'Block.mixer = @Mixer',
    'Mixer.num_heads = 2',
    'Block.cross = @Cross',
    'MLP.hidden_dim = 4',
  )
  (folder / 'block.gin').write_text('\n'.join(['import older_parts', *bindings]))
  block = read_config(['block.gin'], root='@Block').build()(8, rngs=nnx.Rngs(0))
  source = Source(X[:, :3], Tokens.row(3))
  whole = block(X, Call(Tokens.row(5), Causal(), source=source)).x
  cache, slots = block.init_cache(2, 5, np.float32, source), Slots.empty(2, 5)
  for i in range(5):
    tokens = Tokens(jnp.full((2, 1), i), jnp.ones((2, 1), jnp.int32))
    slots = slots.extend(tokens)
    call = Call(tokens, Causal(), source=source.without_vectors(), slots=slots)
    result = block(X[:, i : i + 1], call, cache)
    cache = result.cache
    np.testing.assert_allclose(result.x[:, 0], whole[:, i], atol=1e-5)


@pytest.mark.parametrize('stack', ['Stack', 'Layers'])
def test_layers_and_stacks_without_a_source_in_init_cache_decode(folder, monkeypatch, stack):
  monkeypatch.chdir(folder)
  bindings = 'import older_parts', f'{stack}.blocks = [@Layer]', f'{stack}.num_layers = 2'
  (folder / 'decoder.gin').write_text('\n'.join([*bindings, f'Decoder.stack = @{stack}']))
  body = read_config(['decoder.gin'], root='@Decoder').build()(8, rngs=nnx.Rngs(0))
  source = Source(X[:, :3], Tokens.row(3))
  whole, cache = body(X, source).x, body.init_cache(2, 5, np.float32, source)
  for i in range(5):
    tokens = Tokens(jnp.full((2, 1), i), jnp.ones((2, 1), jnp.int32))
    result = body(X[:, i : i + 1], tokens=tokens, cache=cache)
    cache = result.cache
    np.testing.assert_allclose(result.x[:, 0], whole[:, i], atol=1e-5)


def test_a_part_that_lacks_another_argument_is_refused(attend):
  message = r'Wrong.__call__ cannot be called as \(y, x, call\): too many positional arguments'
  with pytest.raises(UserError, match=message):
    attend('MultiHeadAttention.head_outputs = @Wrong')


def test_an_adapted_class_keeps_its_name_and_its_base_class(attend):
  attend('MultiHeadAttention.scores = @Scores')
  import older_parts

  part = read_config(['part.gin'], root='@MultiHeadAttention').build()(8, rngs=nnx.Rngs(0))
  assert isinstance(part.scores, older_parts.Scores)
  assert type(part.scores).__name__ == 'Scores'
  other = read_config(['part.gin'], root='@MultiHeadAttention').build()(8, rngs=nnx.Rngs(0))
  assert type(other.scores) is type(part.scores)


def test_an_older_embedder_is_refused_with_what_it_lacks(tmp_path, monkeypatch):
  config = Path('configs/models/small_vit.gin').resolve()
  monkeypatch.chdir(tmp_path)
  Path('older_embedders.py').write_text(EMBEDDER)
  text = f"import older_embedders\ninclude '{config}'\n"
  Path('own.gin').write_text(f'{text}VisionTransformer.embedding = @OlderPatches\n')
  with pytest.raises(UserError, match='OlderPatches has no input and num_extra'):
    read_config(['own.gin'])


def test_wirings_without_ends_have_copies_and_their_sum(folder, monkeypatch):
  monkeypatch.chdir(folder)
  (folder / 'body.gin').write_text(
    'import older_parts\nBlock.wiring = @Streams\nStack.num_layers = 2\n'
    'MultiHeadAttention.num_heads = 2\nMLP.hidden_dim = 4'
  )
  stack = read_config(['body.gin'], root='@Stack').build()(8, rngs=nnx.Rngs(0))
  plain = read_config(['body.gin'], ['Block.wiring=@NoNorm'], root='@Stack').build()
  call = Call(Tokens.row(5), Causal())
  expected = 2 * plain(8, rngs=nnx.Rngs(0))(X, call).x
  np.testing.assert_allclose(stack(X, call).x, expected, rtol=1e-5, atol=1e-6)
