"""A body of two stages with a merge between them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.experiments import read_config
from t2x.layers import (
  MLP,
  Admin,
  Call,
  DeepNorm,
  Full,
  LearnedGrid,
  LearnedPositions,
  Linear,
  MultiHeadAttention,
  PatchEmbedding,
  RandomScores,
  Recurrent,
  Result,
  RoPE,
  SwitchFeedForward,
  Synthesizer,
  T5Bias,
  Tokens,
  Window,
  depth_scaled,
  named_key,
  normal,
)
from t2x.models import (
  Block,
  Classifier,
  Decoder,
  Encoder,
  Stack,
  Stages,
  VisionTransformer,
  mean_tokens,
)
from t2x.train.params import Blueprint

HIDDEN, CLASSES = 24, 5
ATTENTION = functools.partial(MultiHeadAttention, num_heads=2, use_bias=False)
FEED_FORWARD = functools.partial(MLP, hidden_dim=HIDDEN)


def stack(num_layers=1, mixer=ATTENTION, feed_forward=FEED_FORWARD, **settings):
  block = functools.partial(Block, mixer=mixer, feed_forward=feed_forward, **settings)
  return functools.partial(Stack, num_layers=num_layers, blocks=[block])


def stages(*built):
  return functools.partial(Stages, stages=built or [stack(), stack(2, pattern=Window(3))])


def vision(make, *built, **settings):
  """Images of 8 x 8 pixels -> 4 x 4 tokens -> 2 x 2 tokens of twice the width."""
  return make.built(
    functools.partial(
      VisionTransformer,
      d_model=make.width,
      embedding=functools.partial(PatchEmbedding, patch_size=2, channels=1, class_token=False),
      positions=functools.partial(LearnedGrid, height=4, width=4, num_extra=0),
      body=functools.partial(Encoder, stack=stages(*built)),
      pool=mean_tokens,
      head=functools.partial(Classifier, num_classes=CLASSES),
      **settings,
    )
  )


def images(size=8):
  return jax.random.normal(jax.random.key(0), (3, size, size, 1))


def test_stages_are_stacks_with_a_merge_between(make):
  model = vision(make)
  out = model.hidden(images())
  x, tokens = model.embedding(images())
  x = model.positions.embed(x, tokens)
  plain = Encoder(make.width, stack=stack(), final_norm=None, rngs=nnx.Rngs(0))
  first, second = model.body.stack.stages
  plain.stack = first
  result = model.body.stack.merges[0](plain(x, tokens=tokens).x, Call(tokens))
  merged = result.tokens
  plain.stack = second
  x = result.x
  x = model.body.final_norm(plain(x, tokens=merged).x)
  np.testing.assert_allclose(out.x, x, atol=1e-5)
  assert out.x.shape == (3, 4, 2 * make.width) and model.body.output_dim == 2 * make.width
  assert out.tokens.grid == merged.grid == (2, 2)


def block_size(width):
  attention = 4 * width * width + width
  return attention + 2 * width * HIDDEN + HIDDEN + width + 4 * width


def test_parameters_are_as_by_hand(make):
  wide = 2 * make.width
  embedding = 4 * make.width + make.width + 16 * make.width
  merge = 2 * 4 * make.width + 4 * make.width * wide
  expected = embedding + block_size(make.width) + merge + 2 * block_size(wide)
  expected += 2 * wide + wide * CLASSES + CLASSES
  assert Blueprint(vision(make)).size == expected


@pytest.mark.nightly
def test_a_step_against_the_gradient_lowers_the_loss(make):
  model, labels = vision(make), jnp.asarray([0, 3, 1])

  @jax.jit
  def value(model):
    logits = model(images(), key=jax.random.key(1)).x
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()

  before, gradients = jax.jit(jax.value_and_grad(value))(model)
  for path, gradient in jax.tree.leaves_with_path(gradients):
    assert bool(jnp.isfinite(gradient).all()), path
    assert float(jnp.abs(gradient).max()) > 1e-6, path
  after = value(jax.tree.map(lambda p, g: p - 1e-3 * g, model, gradients))
  assert after < before


def test_another_image_size_interpolates_the_positions(make):
  model = vision(make)
  assert model.hidden(images(12)).tokens.grid == (3, 3)
  assert model(images(12)).x.shape == (3, CLASSES)


def test_auxiliary_losses_are_summed_over_stages(make):
  switch = functools.partial(SwitchFeedForward, num_experts=2, hidden_dim=HIDDEN)
  one, both = (
    vision(make, stack(), stack(feed_forward=switch)),
    vision(make, stack(feed_forward=switch), stack(feed_forward=switch)),
  )
  assert one(images()).aux.metrics['dropped_tokens'][1] == 3 * 4
  aux = both(images()).aux
  assert aux.metrics['dropped_tokens'][1] == 3 * (4 + 16)
  assert aux.losses['balance'].shape == (3,)


def test_each_stage_has_dropout_of_its_own(make):
  mlp = functools.partial(MLP, hidden_dim=HIDDEN, dropout_rate=0.5)
  model = vision(make, stack(feed_forward=mlp), stack(feed_forward=mlp))
  key = jax.random.key(4)
  trained = model(images(), key=key).x
  np.testing.assert_array_equal(trained, model(images(), key=key).x)
  assert not np.allclose(trained, model(images()).x)
  assert not np.allclose(trained, model(images(), key=named_key(key, 'other')).x)


def test_lengths_and_patterns_match_all_stages(make):
  def random(length):
    scores = functools.partial(RandomScores, max_length=length)
    return functools.partial(Synthesizer, num_heads=2, scores=scores)

  model = make.built(
    functools.partial(Encoder, make.width, stack=stages(stack(), stack(2, pattern=Window(3))))
  )
  assert model.max_length is None and model.patterns == [Full(), Full() & Window(3)]
  for first, second, expected in ((16, 4, 16), (64, 4, 16), (16, 16, 16)):
    built = stages(stack(mixer=random(first)), stack(mixer=random(second)))
    shapes = jax.eval_shape(lambda built=built: built(make.width, rngs=nnx.Rngs(0)))
    assert shapes.max_length == expected


def test_a_cache_is_refused(make):
  body = make.built(functools.partial(Decoder, make.width, stack=stages()))
  with pytest.raises(UserError, match=r'@PatchMerging changes the tokens, so the stages have no'):
    body.init_cache(2, 8, jnp.float32)


def test_a_class_token_is_refused(make):
  embedding = functools.partial(PatchEmbedding, patch_size=2, channels=1)
  positions = functools.partial(LearnedGrid, height=4, width=4)
  model = make.built(
    functools.partial(
      VisionTransformer,
      d_model=make.width,
      embedding=embedding,
      positions=positions,
      body=functools.partial(Encoder, stack=stages()),
      head=functools.partial(Classifier, num_classes=CLASSES),
    )
  )
  with pytest.raises(UserError, match=r'but 1 precede it .*class_token = False'):
    model(images())


def test_a_decoder_needs_an_encoder_of_its_own_width(make):
  decoder = functools.partial(Decoder, stack=make.stack([make.block(cross=ATTENTION)]))
  encoder = functools.partial(Encoder, stack=stages())
  with pytest.raises(UserError, match=r'encoder returns vectors of width 32, .* d_model = 16'):
    make.built(make.encoder_decoder(encoder, decoder))


CONFIG = """
include '{root}/configs/models/small_vit.gin'

Encoder.stack = @Stages
Stages.stages = [@Stack, @second/Stack]
Stack.num_layers = 1
second/Stack.num_layers = 2
second/MultiHeadAttention.num_heads = 8
"""


def test_a_config_selects_stages(tmp_path, request):
  file = tmp_path / 'pyramid.gin'
  file.write_text(CONFIG.format(root=request.config.rootpath))
  infos = Blueprint(read_config([file]).build().shapes()).infos
  first = infos['body.stack.stages.0.blocks.0.mixer.q.kernel']
  second = infos['body.stack.stages.1.blocks.0.mixer.q.kernel']
  assert (first.layers, second.layers) == (((0,),), ((1,), (2,)))
  assert first.num_layers == second.num_layers == 3
  assert second.shape[1] == 2 * first.shape[1] and second.shape[2] == 8


FIRST_DENSE = """
include '{root}/configs/models/small_switch.gin'

Decoder.stack = @Stages
Stages:
  stages = [@first/Stack, @Stack]
  merge = [None]
  pattern = [@Window(), @Full()]
  encoding = [None, @T5Bias]
Window.size = 8
T5Bias:
  num_heads = 4
  bidirectional = False
first/Stack:
  num_layers = 2
  blocks = [@Block]
num_layers = 4
"""


def test_a_config_selects_first_layers_of_another_kind(tmp_path, request):
  file = tmp_path / 'first_dense.gin'
  file.write_text(FIRST_DENSE.format(root=request.config.rootpath))
  model = read_config([file]).build().shapes()
  infos = Blueprint(model).infos
  assert infos['body.stack.stages.0.blocks.0.feed_forward.up.kernel'].layers == ((0,), (1,))
  assert infos['body.stack.stages.1.blocks.1.feed_forward.expert.up.kernel'].layers == ((3,), (5,))
  assert 'body.stack.encodings.1.table' in infos and 'body.stack.merges' not in ' '.join(infos)


def depth_of(part, num_layers, **settings):
  """Stages of 1 and 2 layers of equal width, and a stack of `num_layers`; wirings or initialisers read the depth."""
  block = functools.partial(Block, mixer=ATTENTION, **part)
  one, two = (functools.partial(Stack, num_layers=n, blocks=[block], **settings) for n in (1, 2))
  pyramid = Stages(16, stages=[one, two], merge=None, rngs=nnx.Rngs(0))
  return pyramid, Stack(16, num_layers=num_layers, blocks=[block], **settings, rngs=nnx.Rngs(0))


def test_depth_matches_the_body_in_every_stage():
  wired = {'wiring': DeepNorm, 'feed_forward': FEED_FORWARD}
  pyramid, plain = depth_of(wired, 3)
  alpha = plain.blocks[0].mixer_wiring.alpha
  assert alpha == 6**0.25
  assert [stage.blocks[0].mixer_wiring.alpha for stage in pyramid.stages] == [alpha, alpha]
  init = depth_scaled(lambda key, shape, dtype: jnp.ones(shape, dtype))
  scaled = {'feed_forward': functools.partial(MLP, hidden_dim=HIDDEN, out_init=init)}
  for stage in depth_of(scaled, 3)[0].stages:
    np.testing.assert_allclose(stage.blocks[0].feed_forward.down.kernel[...], 6**-0.5, rtol=1e-6)


def test_admin_has_one_value_per_branch_of_all_stages():
  omega = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
  wiring = functools.partial(Admin, omega=omega)
  pyramid, _ = depth_of({'wiring': wiring, 'feed_forward': FEED_FORWARD}, 3)
  values = [
    vars(stage.blocks[0])[name].omega[...][row, 0]
    for stage, rows in zip(pyramid.stages, (1, 2), strict=True)
    for row in range(rows)
    for name in ('mixer_wiring', 'feed_forward_wiring')
  ]
  np.testing.assert_allclose(values, omega, rtol=1e-6)


def test_stochastic_depth_grows_over_all_stages():
  """The rates of the layers are those of one stack of three layers."""
  pyramid, plain = depth_of({'feed_forward': FEED_FORWARD}, 3, stochastic_depth=0.4)
  rates = [
    np.asarray(part._per_repeat(None, jax.random.key(0))[3]).ravel() for part in pyramid.stages
  ]
  np.testing.assert_allclose(np.concatenate(rates), [0.0, 0.2, 0.4], rtol=1e-6)
  np.testing.assert_array_equal(
    np.concatenate(rates), np.asarray(plain._per_repeat(None, jax.random.key(0))[3]).ravel()
  )


class Wider(nnx.Module):
  """A projection between two stages, which keeps the tokens."""

  num_merged, keeps_tokens = 1, True

  def __init__(self, d_model, *, rngs):
    self.output_dim = 2 * d_model
    self.projection = Linear(
      (d_model,), (2 * d_model,), ('embed', 'mlp'), init=normal(1.0), rngs=rngs
    )

  def __call__(self, x, call):
    return Result(self.projection(x))


@pytest.mark.parametrize('merge', [None, Wider])
def test_stages_that_keep_the_tokens_decode_token_by_token(make, merge):
  settings = {'merge': merge, 'pattern': [Window(2), Window(3)]}
  layers = functools.partial(Stages, stages=[stack(), stack(2)], **settings)
  body = make.built(functools.partial(Decoder, make.width, stack=layers, encoding=RoPE))
  x = jax.random.normal(jax.random.key(0), (2, 6, make.width))
  whole = body(x).x
  first = jnp.zeros((2, 1), jnp.int32)
  cache = body.init_cache(2, 8, jnp.float32)
  run = jax.jit(lambda body, x, tokens, cache: body(x, tokens=tokens, cache=cache))
  out = run(body, x[:, :3], Tokens.row(3), cache)
  steps, (body, cache) = [out.x], body.unstacked(out.cache)
  for i in range(3, 6):
    out = run(body, x[:, i : i + 1], Tokens(first + i), cache)
    steps, cache = [*steps, out.x], out.cache
  np.testing.assert_allclose(jnp.concatenate(steps, axis=1), whole, atol=1e-5)


def test_a_stage_has_the_pattern_and_encoding_of_its_own():
  """A window seen by the first stage only, and a bias by the second only, against stacks by hand."""
  bias = functools.partial(T5Bias, num_heads=2, bidirectional=True, init=normal(1.0))
  both = Stages(
    16,
    stages=[stack(), stack()],
    merge=None,
    pattern=[Window(2), Full()],
    encoding=[None, bias],
    rngs=nnx.Rngs(0),
  )
  x, tokens = jax.random.normal(jax.random.key(0), (2, 6, 16)), Tokens.row(6)
  first, second = both.stages
  y = first(x, Call(tokens, Window(2))).x
  y = second(y, Call(tokens, Full(), encoding=both.encodings[1])).x
  np.testing.assert_allclose(both(x, Call(tokens)).x, y, atol=1e-6)
  assert both.patterns(Full()) == [Full() & Window(2) & Full(), Full() & Full() & Full()]


def test_layers_are_built_with_the_pattern_around_the_stages():
  """A recurrent layer reads only earlier tokens in a decoder, and has two directions in an encoder."""
  layers = functools.partial(Stages, stages=[stack(mixer=Recurrent)], merge=None)
  x, bodies = jax.random.normal(jax.random.key(0), (1, 5, 16)), {}
  for body in (Decoder, Encoder):
    bodies[body] = body(16, stack=layers, rngs=nnx.Rngs(0))
    first = bodies[body](x).x[:, 0] == bodies[body](x.at[:, 1:].add(1)).x[:, 0]
    assert bool(first.all()) == (body is Decoder)


def test_vectors_of_a_stage_are_added_to_its_input():
  learned = functools.partial(LearnedPositions, max_length=6, init=normal(1.0))
  both = Stages(
    16, stages=[stack(), stack()], merge=None, encoding=[None, learned], rngs=nnx.Rngs(0)
  )
  x, call = jax.random.normal(jax.random.key(0), (2, 6, 16)), Call(Tokens.row(6))
  y = both.stages[0](x, call).x + both.encodings[1].table[...][None]
  np.testing.assert_allclose(both(x, call).x, both.stages[1](y, call).x, atol=1e-6)
  assert both.max_length == 6


def test_an_encoding_that_no_stage_reads_is_refused():
  bias = functools.partial(T5Bias, num_heads=2, bidirectional=True)
  layers = Stages(16, stages=[stack()], merge=None, encoding=bias, rngs=nnx.Rngs(0))
  with pytest.raises(
    UserError, match='RoPE acts in the layers, but no block of this stack reads it'
  ):
    layers(jnp.ones((1, 4, 16)), Call(Tokens.row(4), encoding=RoPE(16, rngs=nnx.Rngs(0))))


def test_a_list_needs_one_entry_per_stage_or_boundary():
  with pytest.raises(UserError, match=r'Stages.merge has 2 entries for 1 boundaries: write one'):
    Stages(16, stages=[stack(), stack()], merge=[None, None], rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=r'Stages.pattern has 1 entries for 2 stages'):
    Stages(16, stages=[stack(), stack()], merge=None, pattern=[Full()], rngs=nnx.Rngs(0))
