"""Update rules on parameters by name: who is decayed, who is orthogonalised, who is clipped."""

import functools

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  AdditiveScores,
  BilinearScores,
  DynamicConvolution,
  FactorisedEmbedding,
  HyperConnections,
  LightweightConvolution,
  MemoryCompressedAttention,
  MultiHeadAttention,
  NystromAttention,
  PatchEmbedding,
  RandomScores,
  RMSNorm,
  RoutingAttention,
  T5Bias,
  TalkingHeads,
  TokenEmbedding,
  XLPositions,
)
from t2x.layers.attention.projections import Heads
from t2x.models import Block, Encoder, GlobalTokens, MaskedLMHead, PooledClassifier, Stack
from t2x.train.optimizers import (
  SGD,
  Adafactor,
  AdamW,
  Lion,
  Muon,
  build_optimizer,
  decay_mask,
  matrix_dimensions,
)
from t2x.train.params import Blueprint
from t2x.train.schedules import Constant

RULES = [
  AdamW(),
  Adafactor(min_dim_size=4, momentum=0.9, weight_decay=0.1),
  SGD(momentum=0.9, nesterov=True),
  SGD(),
  Lion(),
  Muon(),
]


def host(tree):
  """On the host nothing is compiled."""
  return jax.tree.map(np.asarray, tree)


@pytest.fixture(scope='module')
def infos(tiny):
  return Blueprint(jax.eval_shape(tiny)).infos


@pytest.fixture(scope='module')
def model(tiny):
  """Parameters by name."""
  return host(Blueprint(jax.eval_shape(tiny)).params(jax.jit(tiny)()))


@pytest.fixture(scope='module')
def step(infos):
  return functools.partial(take_step, infos)


def take_step(infos, rule, model, grads, clip_norm=None, rates=None):
  """One update with learning rate 1."""
  optimizer = build_optimizer(
    rule, Constant(peak=1.0), clip_norm=clip_norm, num_steps=10, infos=infos, rates=rates
  )

  @jax.jit
  def update(model, grads):
    state = optimizer.init(model)
    updates, new_state = optimizer.update(grads, state, model)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    return optax.apply_updates(model, updates), state

  return host(update(model, grads))


def test_norms_and_biases_are_not_decayed_stacked_or_not(infos):
  mask = decay_mask(infos)
  assert {name for name, decayed in mask.items() if decayed} == {
    'table',
    'blocks.q',
    'blocks.out',
    'mlp.0',
  }
  # [layers, embed] and [layers, heads, head_dim]
  assert not mask['blocks.scale'] and not mask['blocks.bias']


@pytest.mark.parametrize('rule', RULES, ids=lambda rule: type(rule).__name__)
def test_every_rule_moves_every_parameter_and_keeps_the_structure(rule, model, step):
  grads = jax.tree.map(lambda a: np.cos(7 * a + 1), model)
  new, _ = step(rule, model, grads)
  assert jax.tree.structure(new) == jax.tree.structure(model)
  for before, after in zip(jax.tree.leaves(model), jax.tree.leaves(new), strict=True):
    assert after.dtype == before.dtype
    assert np.isfinite(after).all()
    assert not np.array_equal(before, after) or not np.any(before)  # Adafactor scales by size.


@pytest.mark.parametrize('rule', [AdamW, Adafactor, SGD, Lion, Muon])
def test_decay_shrinks_only_matrices(rule, model, step):
  grads = jax.tree.map(np.zeros_like, model)
  new, _ = step(rule(weight_decay=0.25), model, grads)
  for name in ('blocks.q', 'blocks.out', 'table'):
    np.testing.assert_allclose(new[name], 0.75 * model[name], atol=1e-6)
  np.testing.assert_array_equal(new['blocks.scale'], model['blocks.scale'])


def test_adamw_is_optax_adamw(model, step, infos):
  grads = jax.tree.map(np.cos, model)
  ours, _ = step(AdamW(weight_decay=0.1), model, grads)
  reference = optax.adamw(1.0, weight_decay=0.1, mask=decay_mask(infos))

  @jax.jit
  def update(model, grads):
    return optax.apply_updates(model, reference.update(grads, reference.init(model), model)[0])

  theirs = update(model, grads)
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_clipping_scales_the_gradient_to_the_norm(model, step):
  grads = jax.tree.map(np.cos, model)
  new, _ = step(SGD(), model, grads, clip_norm=0.5)
  change = jax.tree.map(np.subtract, model, new)
  norm = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(change)))
  assert norm == pytest.approx(0.5, rel=1e-4)


def test_gradients_are_clipped_before_the_rule(model, step):
  """The directions of Adam have the size 1 whatever the norm of the gradient."""
  grads = jax.tree.map(np.cos, model)
  new, _ = step(AdamW(weight_decay=0.0), model, grads, clip_norm=0.5)
  for name, gradient in grads.items():
    np.testing.assert_allclose(model[name] - new[name], np.sign(gradient), atol=1e-3)


MODELS = {
  'body.projection': lambda: Encoder(
    16, input_dim=8, stack=functools.partial(Stack, num_layers=1, blocks=[BLOCK]), rngs=nnx.Rngs(0)
  ),
  'head': lambda: MaskedLMHead(16, 30, rngs=nnx.Rngs(0)),
  'classifier': lambda: PooledClassifier(16, num_classes=3, rngs=nnx.Rngs(0)),
  'embedding': lambda: FactorisedEmbedding(
    16, vocab_size=30, factor_dim=4, num_types=2, rngs=nnx.Rngs(0)
  ),
  'dynamic': lambda: DynamicConvolution(16, num_heads=4, rngs=nnx.Rngs(0)),
  'lightweight': lambda: LightweightConvolution(16, num_heads=4, rngs=nnx.Rngs(0)),
  'patches': lambda: PatchEmbedding(16, patch_size=2, rngs=nnx.Rngs(0)),
  't5': lambda: T5Bias(16, num_heads=2, bidirectional=True, rngs=nnx.Rngs(0)),
  'random': lambda: RandomScores(Heads(16, 2, 2, 8, 8), max_length=4, rngs=nnx.Rngs(0)),
  'additive': lambda: AdditiveScores(Heads(16, 2, 2, 8, 8), rngs=nnx.Rngs(0)),
  'nystrom': lambda: NystromAttention(
    16, num_heads=2, num_landmarks=4, conv_size=3, rngs=nnx.Rngs(0)
  ),
  'compressed': lambda: MemoryCompressedAttention(16, num_heads=2, rngs=nnx.Rngs(0)),
  'xl': lambda: XLPositions(16, num_heads=2, rngs=nnx.Rngs(0)),
}
BLOCK = functools.partial(
  Block,
  mixer=functools.partial(MultiHeadAttention, num_heads=2),
  feed_forward=functools.partial(MLP, hidden_dim=8),
)


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('body.projection', {'projection', 'mixer', 'feed_forward'}),
    ('head', {'transform'}),
    ('classifier', {'transform'}),
    ('embedding', {'projection'}),
    ('dynamic', {'gate', 'kernel', 'out'}),
    ('lightweight', {'gate', 'out'}),
    ('patches', set()),
    ('t5', set()),
    ('random', set()),
    ('additive', set()),
    ('nystrom', {'q', 'k', 'v', 'out'}),
    ('compressed', {'q', 'k', 'v', 'out'}),
    ('xl', {'r'}),
  ],
)
def test_muon_takes_every_projection_and_nothing_that_is_looked_up(name, expected):
  found = set()
  for info in Blueprint(jax.eval_shape(MODELS[name])).infos.values():
    if matrix_dimensions(info) is not None:
      keys = info.name.split('.')
      found |= {key for key in keys if key in ('mixer', 'feed_forward')} or {keys[0]}
  assert found == expected


@pytest.fixture(scope='module')
def muon(model, step):
  """Random gradients, the model after a step of Muon with learning rate 1, the optimizer's state."""
  rng = np.random.default_rng(0)
  grads = jax.tree.map(lambda a: np.float32(rng.normal(size=a.shape)), model)
  return grads, *step(Muon(weight_decay=0.0, rms=None, b2=0.999), model, grads)


@pytest.mark.parametrize('name', ['blocks.q', 'blocks.out'])
def test_muon_makes_each_stacked_layer_orthogonal_with_its_heads_merged(name, model, muon):
  grads, new, _ = muon
  change = model[name] - new[name]
  for layer, gradient in zip(change, grads[name], strict=True):
    # The step's singular vectors are the gradient's, its singular values near 1.
    u, _, v = np.linalg.svd(gradient.reshape(8, 8))
    inside = u.T @ layer.reshape(8, 8) @ v.T
    assert 0.3 < np.diag(inside).min() < np.diag(inside).max() < 1.3
    np.testing.assert_allclose(inside - np.diag(np.diag(inside)), 0, atol=1e-3)


@pytest.mark.parametrize('name', ['blocks.q', 'blocks.out'])
def test_the_first_step_of_muon_is_five_newton_schulz_iterations(name, model, muon, compared):
  grads, new, _ = muon
  for before, after, gradient in zip(model[name], new[name], grads[name], strict=True):
    x = gradient.reshape(8, 8).astype(np.float64)
    x /= np.linalg.norm(x)
    for _ in range(5):
      square = x @ x.T
      x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    change = (before - after).reshape(8, 8)
    compared('Muon', 'NumPy, float64', change, x, atol=1e-5)


def test_muon_leaves_tables_norms_and_biases_to_adam(model, step, muon):
  grads, new, state = muon
  adam, _ = step(AdamW(weight_decay=0.0), model, grads)
  for name in ('table', 'blocks.scale', 'blocks.bias'):
    np.testing.assert_allclose(new[name], adam[name], atol=1e-6)
  adam_names = jax.tree_util.tree_leaves_with_path(state[0].inner_states['adam'])
  assert not any('blocks.q' in jax.tree_util.keystr(path) for path, _ in adam_names)


MATRICES = {
  'blocks.q': (8, 8),
  'blocks.out': (8, 8),
  'blocks.bias': (8,),
  'blocks.scale': (8,),
  'table': (16, 8),
  'mlp.0': (8, 16),
}


def test_adafactor_matches_transformers_on_the_matrix_of_each_layer(tiny, infos):
  """Three steps against transformers, with heads merged and each layer a parameter of its own."""
  torch = pytest.importorskip('torch')
  reference = pytest.importorskip('transformers.optimization').Adafactor
  model = host(Blueprint(jax.eval_shape(tiny)).params(jax.jit(tiny)()))
  rule = Adafactor(min_dim_size=4)
  optimizer = build_optimizer(rule, Constant(peak=0.1), clip_norm=None, num_steps=10, infos=infos)
  theirs = {
    name: [torch.nn.Parameter(torch.tensor(part)) for part in value.reshape(-1, *MATRICES[name])]
    for name, value in model.items()
  }
  parameters = [part for parts in theirs.values() for part in parts]
  other = reference(parameters, lr=0.1, relative_step=False, scale_parameter=True)
  params, state = model, optimizer.init(model)
  rng = np.random.default_rng(0)
  for _ in range(3):
    grads = {name: np.float32(rng.normal(size=value.shape)) for name, value in model.items()}
    updates, state = jax.jit(optimizer.update)(grads, state, params)
    params = optax.apply_updates(params, updates)
    for name, parts in theirs.items():
      for part, grad in zip(parts, grads[name].reshape(-1, *MATRICES[name]), strict=True):
        part.grad = torch.tensor(grad)
    other.step()
  for name, parts in theirs.items():
    expected = np.stack([part.detach().numpy() for part in parts]).reshape(model[name].shape)
    np.testing.assert_allclose(params[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)


def test_adafactor_factors_attention_kernels_with_narrow_heads():
  """T5's projections are [512, 512] in 8 heads of 64."""
  build = functools.partial(MultiHeadAttention, 512, num_heads=8, use_bias=False)
  blueprint = Blueprint(jax.eval_shape(lambda: build(rngs=nnx.Rngs(0))))
  state = jax.eval_shape(
    Adafactor().direction(blueprint.infos).init, blueprint.params(blueprint.shapes)
  )
  factored = state[0]
  assert {name: leaf.shape for name, leaf in factored.rows.items()} == {
    'q.kernel': (512,),
    'k.kernel': (512,),
    'v.kernel': (512,),
    'out.kernel': (8, 64),
  }
  assert factored.moments.keys() == {'out.bias'}


UNDECAYED = {
  'Transformer-XL': (
    lambda rngs: XLPositions(16, num_heads=4, rngs=rngs),
    {'content_bias', 'position_bias'},
  ),
  'null keys': (
    lambda rngs: MemoryCompressedAttention(
      16, num_heads=4, use_bias=False, out_bias=False, rngs=rngs
    ),
    {'k_null', 'v_null', 'k_conv.bias', 'v_conv.bias'},
  ),
  'additive scores': (lambda rngs: AdditiveScores(Heads(16, 4, 4, 4, 4), rngs=rngs), {'w'}),
  'bilinear scores': (lambda rngs: BilinearScores(Heads(16, 4, 4, 4, 4), rngs=rngs), set()),
  'centroids': (
    lambda rngs: RoutingAttention(
      16, num_heads=4, num_clusters=2, window=3, use_bias=False, out_bias=False, rngs=rngs
    ),
    {'centroids'},
  ),
  'hyper-connections': (
    lambda rngs: HyperConnections(16, norm=RMSNorm, rngs=rngs),
    {'norm.scale', 'read', 'mix', 'write'},
  ),
  'talking heads': (
    lambda rngs: TalkingHeads(Heads(16, 4, 4, 4, 4), rngs=rngs),
    {'before', 'after'},
  ),
  'global tokens': (
    lambda rngs: GlobalTokens(
      16, n=3, embedding=functools.partial(TokenEmbedding, vocab_size=30), rngs=rngs
    ),
    {'vectors'},
  ),
}


@pytest.mark.parametrize('name', UNDECAYED)
def test_vectors_and_neutral_elements_are_not_decayed(name):
  """With gradients of 0 and weight decay 0.25, the other parameters shrink to three quarters."""
  build, kept = UNDECAYED[name]
  blueprint = Blueprint(jax.eval_shape(lambda: build(nnx.Rngs(0))))
  rng = np.random.default_rng(0)
  params = {n: np.float32(rng.normal(size=i.shape)) for n, i in blueprint.infos.items()}
  zeros = jax.tree.map(np.zeros_like, params)
  new, _ = take_step(blueprint.infos, Muon(weight_decay=0.25), params, zeros)
  for key, value in params.items():
    np.testing.assert_allclose(
      new[key], value * (1 if key in kept else 0.75), atol=1e-6, err_msg=key
    )


def test_muon_makes_the_matrix_of_each_head_of_bilinear_scores_orthogonal():
  infos = Blueprint(
    jax.eval_shape(lambda: BilinearScores(Heads(24, 3, 3, 8, 8), rngs=nnx.Rngs(0)))
  ).infos
  # Far from singular: few iterations do not raise singular values near 0.
  gradient = np.float32(5 * np.eye(8) + np.random.default_rng(0).normal(size=(3, 8, 8)))
  start = {'w': np.zeros((3, 8, 8), np.float32)}
  new, _ = take_step(infos, Muon(weight_decay=0.0, rms=None), start, {'w': gradient})
  for change, own in zip(-new['w'], gradient, strict=True):
    u, _, v = np.linalg.svd(own)
    inside = u.T @ change @ v.T
    assert 0.3 < np.diag(inside).min() < np.diag(inside).max() < 1.3
    np.testing.assert_allclose(inside - np.diag(np.diag(inside)), 0, atol=1e-3)
