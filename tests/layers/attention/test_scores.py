"""Scores parts of attention against reference code and NumPy, and the projections that they need."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, empty
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  TUPE,
  AdditiveScores,
  Auto,
  BilinearScores,
  Blockwise,
  Causal,
  CosineScores,
  Dense,
  DotProduct,
  DotProductScores,
  JointNorm,
  MultiHeadAttention,
  RandomScores,
  SourceSequence,
  Tokens,
  zeros,
)
from t2x.layers.attention.projections import Heads

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytest.importorskip('transformers', reason="the extra 'references' is not installed")
from transformers import Olmo2Config  # noqa: E402
from transformers.models.gemma2 import modeling_gemma2  # noqa: E402
from transformers.models.gpt_oss import modeling_gpt_oss  # noqa: E402
from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention  # noqa: E402

BATCH, LENGTH, WIDTH, HEADS, KV_HEADS, SIZE = 2, 9, 16, 4, 2, 4
SIZES = Heads(WIDTH, HEADS, KV_HEADS, SIZE, SIZE)
X = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDTH)), jnp.float32)
KERNELS = [Dense(), Blockwise(4, 3)]


def moved(part, scale=0.4):
  """Every parameter moved away from where it starts."""
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: leaf + jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype), part
  )


def build(kernel=Dense(), reads_source=False, **settings):
  settings = {'num_heads': HEADS, 'num_kv_heads': KV_HEADS} | settings
  settings = {'reads_source': reads_source, 'kernel': kernel} | settings
  return moved(MultiHeadAttention(WIDTH, rngs=nnx.Rngs(0), **settings))


attend = jax.jit(
  lambda attention, x, **settings: applied(attention, x, pattern=Causal(), **settings)[0],
  compiler_options={'xla_backend_optimization_level': 0},
)


def double(array):
  return np.asarray(array, np.float64)


def projected(attention, x=X):
  return (
    np.einsum('bld,dhe->blhe', double(x), double(linear.kernel[...])) + double(linear.bias[...])
    for linear in (attention.q, attention.k, attention.v)
  )


def output(attention, read):
  return np.einsum('bqhe,hed->bqd', read, double(attention.out.kernel[...])) + double(
    attention.out.bias[...]
  )


class Eager(torch.nn.Module):
  """What transformers' eager attention functions read of a layer."""

  num_key_value_groups = HEADS // KV_HEADS

  def __init__(self, sinks=None):
    super().__init__()
    self.sinks = sinks
    self.eval()


def eager(function, attention, module, **settings):
  """The output of a model's attention in transformers, from our projections, in float64."""
  q, k, v = (torch.tensor(a).transpose(1, 2) for a in projected(attention))
  mask = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1)[None, None]
  read, probabilities = function(module, q, k, v, mask, scaling=SIZE**-0.5, **settings)
  return output(attention, read.numpy()), probabilities


@pytest.mark.parametrize('kernel', KERNELS, ids=str)
def test_soft_cap_equals_transformers_gemma2(kernel, compared):
  attention = build(kernel, scores=functools.partial(DotProductScores, soft_cap=0.7))
  expected, _ = eager(
    modeling_gemma2.eager_attention_forward, attention, Eager(), softcap=0.7, dropout=0.0
  )
  system = 'soft-capped scores', 'transformers gemma2'
  compared(*system, attend(attention, X), expected, rtol=1e-7, atol=5e-6)


@pytest.mark.parametrize('kernel', KERNELS, ids=str)
def test_sinks_equal_transformers_gpt_oss(kernel, compared):
  attention = build(kernel, scores=functools.partial(DotProductScores, sink=zeros()))
  module = Eager(torch.tensor(double(attention.scores.sink[...])))
  expected, _ = eager(modeling_gpt_oss.eager_attention_forward, attention, module, dropout=0.0)
  system = 'attention sinks', 'transformers gpt_oss'
  compared(*system, attend(attention, X), expected, rtol=1e-7, atol=5e-6)
  assert attention.scores.sink.axes == ('heads',)


def test_dot_products_have_no_parameters():
  assert jax.tree.leaves(DotProductScores(SIZES, rngs=nnx.Rngs(0))) == []


@pytest.mark.parametrize('kernel', KERNELS, ids=str)
def test_cosine_scores_are_their_formula(kernel, compared):
  attention = build(kernel, scores=CosineScores)
  attention.scores.logit[...] = jnp.asarray(
    [-1.0, 0.5, 2.0, 6.0]
  )  # The last is clipped at log 100.
  q, k, v = projected(attention)
  q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k))
  k, v = (np.repeat(a, HEADS // KV_HEADS, axis=2) for a in (k, v))
  factor = np.exp(np.minimum([-1.0, 0.5, 2.0, 6.0], np.log(100)))
  scores = np.einsum('bqhd,bkhd->bhqk', q, k) * factor[:, None, None]
  weights = np.exp(scores - scores.max(-1, keepdims=True)) * Causal().mask(LENGTH, LENGTH)
  read = np.einsum('bhqk,bkhd->bqhd', weights / weights.sum(-1, keepdims=True), v)
  system = 'cosine scores', 'NumPy, float64'
  compared(*system, attend(attention, X), output(attention, read), rtol=1e-7, atol=2e-5)


def test_cosine_scores_start_at_the_factor_of_swin():
  scores = CosineScores(SIZES, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(scores.logit[...], np.log(10.0), rtol=1e-6)
  assert scores.logit.get_metadata()['keep_float32']


def test_gradients_of_cosine_scores_are_finite_for_zero_queries():
  attention = build(scores=CosineScores, use_bias=False)
  gradient = jax.grad(lambda x: applied(attention, x, pattern=Causal())[0].sum())(jnp.zeros_like(X))
  assert jnp.isfinite(gradient).all()


def test_a_learned_temperature_learns():
  attention = build(scores=CosineScores)
  gradient = jax.grad(lambda a: jnp.square(applied(a, X, pattern=Causal())[0]).sum())(attention)
  assert (jnp.abs(gradient.scores.logit[...]) > 0).all()


@pytest.mark.parametrize(
  'scores', [CosineScores, functools.partial(DotProductScores, soft_cap=2.0, sink=zeros())]
)
def test_cached_decoding_equals_the_whole_row(scores):
  attention = build(scores=scores)
  state, outputs = empty(attention, BATCH, LENGTH), []
  for start, stop in ((0, 5), (5, 6), (6, 9)):
    positions = jnp.broadcast_to(jnp.arange(start, stop), (BATCH, stop - start))
    tokens = Tokens(positions, jnp.ones_like(positions))
    y, state = applied(attention, X[:, start:stop], pattern=Causal(), tokens=tokens, state=state)
    outputs.append(y)
  np.testing.assert_allclose(jnp.concatenate(outputs, 1), attend(attention, X), atol=1e-5)


def test_scores_are_built_with_the_heads_and_return_only_scores():
  built = []

  class Constant(nnx.Module):
    reads = frozenset({'k'})
    max_length = None

    def __init__(self, heads, *, rngs):
      built.append(heads)

    def __call__(self, q, k, q_tokens, k_tokens, *, scale, call):
      assert q is None and q_tokens is call.tokens and q_tokens.positions.shape == (1, LENGTH)
      return DotProduct(0 * k, k, scale)

  attention = build(scores=Constant, num_kv_heads=HEADS)
  assert (
    built == [Heads(WIDTH, HEADS, HEADS, SIZE, SIZE)]
    and attention.q is None
    and attention.k is not None
  )
  mean, _ = applied(attention, X)
  np.testing.assert_allclose(mean, mean[:, :1].repeat(LENGTH, 1), atol=1e-6)


def test_a_part_with_the_sizes_of_an_older_version_is_refused_in_one_line_with_the_new_arguments():
  class Older(nnx.Module):
    def __init__(self, num_heads, head_dim, *, cap=1.0, rngs):
      pass

  class OlderKeys(nnx.Module):
    def __init__(self, d_model, num_kv_heads, head_dim, value_dim, use_bias, kernel_init, *, rngs):
      pass

  error = r'^Older.__init__\(self, num_heads, head_dim, ...\) .*write __init__\(self, heads, ...\)'
  with pytest.raises(UserError, match=error):
    build(scores=functools.partial(Older, cap=2.0))
  with pytest.raises(UserError, match=r'write __init__\(self, heads, use_bias, kernel_init, ...\)'):
    build(key_values=OlderKeys)


def test_projections_that_scores_do_not_read_are_not_created():
  random = functools.partial(RandomScores, max_length=LENGTH)
  attention = build(scores=random)
  assert attention.q is attention.k is attention.q_norm is attention.k_norm is None
  assert attention.init_cache(1, LENGTH).k is None
  assert attention.max_length == LENGTH


@pytest.mark.parametrize('scores', [CosineScores, BilinearScores, AdditiveScores])
def test_scores_without_a_scale_refuse_encodings_that_divide_it_by_their_terms(scores):
  attention = build(scores=scores)
  tupe = TUPE(WIDTH, num_heads=HEADS, max_length=LENGTH, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=f'TUPE divides scores by .* 2 terms, but {scores.__name__}'):
    applied(attention, X, encoding=tupe)


def test_a_scale_that_scores_do_not_read_is_refused():
  with pytest.raises(UserError, match=r'MultiHeadAttention\.scale is not read by CosineScores'):
    build(scores=CosineScores, scale=0.5)
  with pytest.raises(UserError, match='cross-attention'):
    random = functools.partial(RandomScores, max_length=LENGTH)
    applied(
      build(reads_source=True, scores=random), X, source=SourceSequence(X, Tokens.row(LENGTH))
    )


@pytest.mark.parametrize('kernel', [*KERNELS, Auto()], ids=str)
def test_joint_norm_equals_transformers_olmo2(kernel, compared):
  config = Olmo2Config(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    rms_norm_eps=1e-6,
    attn_implementation='eager',
  )
  theirs = Olmo2Attention(config, layer_idx=0).double().eval()
  ours = build(kernel, qk_norm=JointNorm, use_bias=False, out_bias=False)
  with torch.no_grad():
    for name, linear in (('q', ours.q), ('k', ours.k), ('v', ours.v)):
      kernel = double(linear.kernel[...]).reshape(WIDTH, -1)
      getattr(theirs, f'{name}_proj').weight[:] = torch.tensor(kernel.T)
    out = double(ours.out.kernel[...]).reshape(-1, WIDTH)
    theirs.o_proj.weight[:] = torch.tensor(out.T)
    theirs.q_norm.weight[:] = torch.tensor(double(ours.q_norm.scale[...]))
    theirs.k_norm.weight[:] = torch.tensor(double(ours.k_norm.scale[...]))
    mask = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    ones = torch.ones((BATCH, LENGTH, SIZE), dtype=torch.float64)
    expected, _ = theirs(torch.tensor(double(X)), (ones, 0 * ones), mask)
  system = 'QK norm', 'transformers Olmo2Attention'
  compared(*system, attend(ours, X), expected.numpy(), rtol=1e-7, atol=5e-6)
  assert ours.q_norm.scale[...].shape == (HEADS * SIZE,)
  assert ours.k_norm.scale[...].shape == (KV_HEADS * SIZE,)


def weighted_mean(attention, score, mask):
  """The attention layer with `score(q, k, head)` for each pair, in float64."""
  q, k, v = projected(attention)
  read = np.zeros((BATCH, LENGTH, HEADS, SIZE))
  for row, head, i in np.ndindex(BATCH, HEADS, LENGTH):
    keys, group = np.flatnonzero(mask[i]), head // (HEADS // KV_HEADS)
    weights = np.exp([score(q[row, i, head], k[row, j, group], head) for j in keys])
    read[row, i, head] = weights / weights.sum() @ v[row, keys, group]
  return output(attention, read)


def test_additive_scores_are_their_formula():
  attention = build(scores=AdditiveScores)
  w = double(attention.scores.w[...])
  expected = weighted_mean(
    attention, lambda q, k, head: w[head] @ np.tanh(q + k), Causal().mask(LENGTH, LENGTH)
  )
  np.testing.assert_allclose(attend(attention, X), expected, atol=5e-6)


@pytest.mark.parametrize('kernel', KERNELS, ids=str)
def test_bilinear_scores_are_their_formula(kernel):
  attention = build(kernel, scores=BilinearScores)
  w = double(attention.scores.w[...])
  expected = weighted_mean(
    attention, lambda q, k, head: q @ w[head] @ k, Causal().mask(LENGTH, LENGTH)
  )
  np.testing.assert_allclose(attend(attention, X), expected, atol=5e-6)


@pytest.mark.parametrize('scores', [AdditiveScores, BilinearScores])
def test_scores_of_a_source_read_its_keys_and_no_scale(scores):
  attention = build(reads_source=True, scores=scores)
  source = X[:, :5] + 1.0
  call = {'source': SourceSequence(source, Tokens.row(5))}
  whole, _ = applied(attention, X, **call)
  changed, _ = applied(attention, X, source=SourceSequence(source.at[:, 2].add(1.0), Tokens.row(5)))
  assert jnp.abs(whole - changed).max() > 1e-3
  with pytest.raises(UserError, match='scale is not read'):
    build(scores=scores, scale=0.5)
