"""The reversible stack against the same computation under plain differentiation, and the memory of its gradient."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, empty
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Hyperparameter
from t2x.base.step import in_step
from t2x.layers import (
  MLP,
  Call,
  Causal,
  Full,
  LearnedValueResidual,
  LSHAttention,
  MultiHeadAttention,
  PostNorm,
  PreNorm,
  Result,
  ReZero,
  RMSNorm,
  RoPE,
  Sinusoidal,
  SourceSequence,
  SwitchFeedForward,
  T5Bias,
  Tokens,
  Window,
  named_key,
)
from t2x.models import (
  Block,
  Encoder,
  LMHead,
  ParallelBlock,
  ReversibleStack,
  Segments,
  concatenated_streams,
)
from t2x.models.stack import restrict_call

part = functools.partial
WIDTH, LENGTH, NUM_LAYERS = 16, 12, 4
NORMED = part(PreNorm, dropout_rate=0.2)
ATTENTION = part(MultiHeadAttention, num_heads=4, num_kv_heads=2, dropout_rate=0.1)
X = jax.random.normal(jax.random.key(1), (2, LENGTH, WIDTH))


def block(mixer=ATTENTION, feed_forward=part(MLP, hidden_dim=24, dropout_rate=0.1), **settings):
  settings = {'wiring': NORMED, **settings}
  return part(Block, mixer=mixer, feed_forward=feed_forward, **settings)


def reversible(*blocks, num_layers=NUM_LAYERS, **settings):
  return part(ReversibleStack, blocks=blocks or [block()], num_layers=num_layers, **settings)


def built(make, *blocks, **settings):
  return make.built(part(reversible(*blocks, **settings), WIDTH))


def packed_and_padded():
  segments = jnp.array([[1] * 5 + [2] * 7, [1] * 8 + [0] * 4])
  positions = jnp.array([[*range(5), *range(7)], [*range(12)]])
  return Tokens(positions, segments)


def depth_factor(key, name, rate):
  """0 or 1 / (1 - rate) for each row."""
  if key is None or rate == 0.0:
    return None
  kept = jax.random.bernoulli(named_key(key, f'{name}.stochastic_depth'), 1 - rate, (len(X), 1, 1))
  return kept / (1 - rate)


def branches(block, call):
  """The branches of a block: name, wiring and function."""
  calls = block.calls(call)
  if isinstance(block, ParallelBlock):

    def added(h):
      return Result(sum(vars(block)[name](block.norm(h), own).x for name, own in calls.items()))

    yield '', block.wiring, added
    return
  for name, own in calls.items():
    part = functools.partial(vars(block)[name], call=own)
    yield name, vars(block)[f'{name}_wiring'], part


def reference(stack, x, call):
  """The equations of the paper, one sublayer after the other; the wiring's own addition is subtracted."""
  first = second = x
  losses = 0.0
  for layer in range(stack.num_layers):
    repeat, place = divmod(layer, len(stack.blocks))
    group = stack.sets.order[repeat]
    one = jax.tree.map(lambda a, group=group: a[group], stack.blocks[place])
    key = None if call.key is None else jax.random.fold_in(call.key, repeat)
    own = dataclasses.replace(
      restrict_call(call, one), place=place, repeat=repeat, key=named_key(key, f'blocks.{place}')
    )
    rate = stack.stochastic_depth * layer / max(stack.num_layers - 1, 1)
    for name, wiring, function in branches(one, own):
      key = named_key(own.key, f'{name}_wiring')
      result = wiring(second, function, key, depth_factor(own.key, name, rate))
      first, second = second, first + (result.x - second)
      losses += sum(loss.sum() for loss in result.aux.losses.values())
  return stack.merge(first, second), losses


def ours(stack, x, call):
  result = stack(x, call)
  return result.x, sum(loss.sum() for loss in result.aux.losses.values())


def check_gradients(stack, x=X, call=None):
  """Values and gradients with respect to parameters, inputs and all arrays of the call."""
  call = Call(packed_and_padded(), Causal(), key=jax.random.key(3)) if call is None else call
  leaves, structure = jax.tree.flatten(
    dataclasses.replace(call, repeat=jnp.int32(0), layer=jnp.int32(0))
  )
  is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
  weights = jax.random.normal(jax.random.key(9), jax.eval_shape(ours, stack, x, call)[0].shape)
  # Outputs of padding are not defined.
  segments = call.tokens.segments
  if segments is not None:
    weights = weights * (segments > 0)[:, :, None]

  def results(function):
    def loss(stack, x, floats):
      given = iter(floats)
      own = [next(given) if chosen else leaf for leaf, chosen in zip(leaves, is_float, strict=True)]
      y, losses = function(stack, x, jax.tree.unflatten(structure, own))
      return (y * weights).sum() + 3.0 * losses, y

    floats = [leaf for leaf, chosen in zip(leaves, is_float, strict=True) if chosen]
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(stack, x, floats)

  expected, actual = map(results, (reference, ours))
  names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(expected)]
  for name, one, other in zip(names, *map(jax.tree.leaves, (expected, actual)), strict=True):
    assert jnp.linalg.norm(other - one) <= 1e-5 * max(1.0, jnp.linalg.norm(one)), name
  return actual


def test_gradients_equal_plain_differentiation_with_dropout_and_packed_rows(make):
  blocks = block(), block(pattern=Window(3), wiring=part(ReZero, norm=RMSNorm, dropout_rate=0.1))
  check_gradients(built(make, *blocks))


def test_gradients_of_parallel_sublayers(make):
  feed_forward = part(MLP, hidden_dim=8, dropout_rate=0.1)
  parallel = part(ParallelBlock, mixer=ATTENTION, feed_forward=feed_forward, dropout_rate=0.1)
  check_gradients(built(make, parallel, num_layers=2))


def test_gradients_with_stochastic_depth(make):
  check_gradients(built(make, num_layers=3, stochastic_depth=0.6))


def test_gradients_with_shared_parameters(make):
  check_gradients(built(make, num_groups=2))
  check_gradients(built(make, num_groups=1, num_layers=2))


def test_gradients_of_the_bias_and_the_source_of_the_body(make):
  stack = built(make, block(cross=ATTENTION), num_layers=2)
  encoding = make.built(part(T5Bias, WIDTH, num_heads=4, bidirectional=False))
  source = SourceSequence(jax.random.normal(jax.random.key(5), (2, 7, WIDTH)), Tokens.row(7))
  call = Call(
    packed_and_padded(), Causal(), encoding=encoding, source=source, key=jax.random.key(3)
  )
  _, (_, _, of_call) = check_gradients(stack, call=call)
  assert all(jnp.abs(gradient).max() > 1e-3 for gradient in of_call)


def test_gradients_of_the_encoding_of_a_block(make):
  check_gradients(
    built(make, block(encoding=part(T5Bias, num_heads=4, bidirectional=False)), num_layers=2)
  )


def test_auxiliary_losses_have_gradients(make):
  experts = part(SwitchFeedForward, hidden_dim=24, num_experts=4, capacity_factor=4.0)
  stack = built(make, block(), block(feed_forward=experts), num_layers=2)
  check_gradients(stack)
  call = Call(packed_and_padded(), Causal())
  result = stack(X, call)
  plain = super(ReversibleStack, stack).__call__(X, call)
  for one, other in zip(*(jax.tree.leaves(r.aux) for r in (plain, result)), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_gradients_of_attention_by_hashes(make):
  mixer = part(LSHAttention, num_heads=4, num_buckets=2, chunk=4, dropout_rate=0.1)
  check_gradients(built(make, block(mixer), num_layers=2))


def test_rates_that_vary_between_trials(make):
  rate = Hyperparameter('PreNorm.dropout_rate')
  varying = built(make, block(wiring=part(PreNorm, dropout_rate=rate)))
  fixed = built(make, block(wiring=part(PreNorm, dropout_rate=0.3)))
  call = Call(Tokens.row(LENGTH), Causal(), key=jax.random.key(3))

  @jax.jit
  def varied(x, rate):
    with in_step(scalars={'PreNorm.dropout_rate': rate}):
      return jax.grad(lambda x: varying(x, call).x.sum())(x)

  expected = jax.grad(lambda x: fixed(x, call).x.sum())(X)
  actual, scale = varied(X, jnp.float32(0.3)), jnp.abs(expected).max()
  np.testing.assert_allclose(actual / scale, expected / scale, atol=1e-5)


def test_bfloat16_gradients_are_as_close_as_those_of_plain_differentiation(make):
  stack = built(make, num_layers=12)
  call = Call(Tokens.row(LENGTH), Causal(), key=jax.random.key(3))

  def rounded(tree):
    return jax.tree.map(lambda a: a.astype(jnp.bfloat16), tree)

  def of(stack, x, apply):
    def loss(stack, x):
      return apply(stack, x).astype(jnp.float32).sum()

    leaves = jax.tree.leaves(jax.jit(jax.grad(loss, (0, 1)))(stack, x))
    return jnp.concatenate([leaf.astype(jnp.float32).ravel() for leaf in leaves])

  def plain(stack, x):
    return super(ReversibleStack, stack).__call__(x, call).x

  def inverted(stack, x):
    return stack(x, call).x

  exact = of(stack, X, plain)
  errors = [
    jnp.linalg.norm(of(rounded(stack), rounded(X), apply) - exact) for apply in (plain, inverted)
  ]
  assert errors[1] < 1.1 * errors[0] < 0.1 * jnp.linalg.norm(exact)


def test_recorded_arrays(make):
  stack = built(make, block(), block(pattern=Window(3)))
  call = Call(Tokens.row(LENGTH), Causal())
  result = stack(X, dataclasses.replace(call, record=frozenset({'hidden'})))
  np.testing.assert_allclose(result.recorded['blocks.1.hidden'][-1], result.x)
  np.testing.assert_allclose(result.x, stack(X, call).x, atol=1e-5)


@pytest.mark.parametrize('unstacked', [False, True])
def test_decoding_equals_the_forward_pass(make, unstacked):
  stack = built(make, block(), block(pattern=Window(3)))
  apply = jax.jit(applied, static_argnames='pattern')
  expected = apply(stack, X, pattern=Causal())[0]
  layers, state = stack, empty(stack, 2, LENGTH, dtype=jnp.float32)
  if unstacked:
    layers, state = (
      stack.unstacked(),
      dataclasses.replace(state, cache=stack.unstacked_cache(state.cache)),
    )
  outputs = []
  for start, stop in ((0, 5), (5, 10), (10, 11), (11, 12)):
    positions = jnp.arange(start, stop)[None]
    y, state = apply(
      layers, X[:, start:stop], tokens=Tokens(positions), pattern=Causal(), state=state
    )
    outputs.append(y)
  np.testing.assert_allclose(jnp.concatenate(outputs, 1), expected, atol=2e-5)


def test_concatenated_streams_have_twice_the_width(make):
  layers = reversible(merge=concatenated_streams)
  model = part(make.language_model(layers=layers, encoding=RoPE, final_norm=RMSNorm), head=LMHead)
  model = make.built(model)
  assert model.body.output_dim == model.body.final_norm.scale.shape[0] == 2 * WIDTH
  assert model.logits(model.hidden(make.ids((2, LENGTH))).x).shape == (2, LENGTH, make.vocab)


def temporary_bytes(stack):
  call = Call(Tokens.row(256), Causal())

  def loss(stack, x):
    return jnp.square(stack(x, call).x).sum()

  x = jax.ShapeDtypeStruct((4, 256, WIDTH), jnp.float32)
  compiled = jax.jit(jax.grad(loss, (0, 1))).lower(stack, x).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def test_memory_of_activations_does_not_grow_with_depth(make):
  def ratio(kind):
    few, many = (
      temporary_bytes(
        jax.eval_shape(lambda n=n: kind(WIDTH, num_layers=n, blocks=[block()], rngs=nnx.Rngs(0)))
      )
      for n in (4, 16)
    )
    return many / few

  assert ratio(ReversibleStack) < 1.1
  assert ratio(make.stack().func) > 2.5


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'blocks': [block(wiring=PostNorm)]}, 'wiring = @PostNorm of mixer .* use PreNorm'),
    ({'blocks': [block(encoding=Sinusoidal)]}, 'encoding = @Sinusoidal is added to the input'),
    ({'blocks': [block(part(ATTENTION, values=LearnedValueResidual))]}, 'passes arrays to later'),
    ({'num_layers': 3, 'blocks': [block(), block()]}, r'ReversibleStack.num_layers = 3'),
    ({'num_groups': 3}, r'ReversibleStack.num_groups = 3: must divide 4'),
  ],
)
def test_layers_that_cannot_be_inverted_are_refused(settings, message):
  settings = {'num_layers': NUM_LAYERS, 'blocks': [block()], **settings}
  with pytest.raises(UserError, match=message):
    jax.eval_shape(lambda: ReversibleStack(WIDTH, **settings, rngs=nnx.Rngs(0)))


def test_the_memory_of_segments_is_refused(make):
  stack = make.built(part(Segments, WIDTH, stack=reversible(), length=4, memory=4))
  with pytest.raises(UserError, match=r'memory of Segments: use Segments.stack = @Stack'):
    applied(stack, X, pattern=Causal())


def test_an_unread_source_is_refused(make):
  call = Call(Tokens.row(LENGTH), Full(), source=SourceSequence(X, Tokens.row(LENGTH)))
  with pytest.raises(UserError, match='no block of this stack has cross-attention'):
    built(make)(X, call)


def test_an_encoder_ends_with_a_norm():
  body = jax.eval_shape(lambda: Encoder(WIDTH, stack=reversible(), rngs=nnx.Rngs(0)))
  assert body.final_norm is not None
