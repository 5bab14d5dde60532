"""Removing heads equals masking them, in every kind of model, and what cannot be removed is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.config import GinText
from t2x.experiments import read_config
from t2x.layers import MLP, MultiHeadAttention
from t2x.models import Block, Stack, Stages
from t2x.prune.heads import AttentionHeads, cut, find_heads, remaining, removal_order, scaled
from t2x.prune.pruning import HeadScores, _chosen, pruned_gin
from t2x.train.params import Blueprint

CONFIGS = 'configs/models'
SIZE = ('d_model=16', 'vocab_size=30', 'MLP.hidden_dim=24', 'MultiHeadAttention.num_heads=4')
ENCODER = (f'{CONFIGS}/small_encoder.gin', 'num_layers=3')
GROUPED = (
  f'{CONFIGS}/small_decoder.gin',
  'num_layers=3',
  'MultiHeadAttention.num_kv_heads=2',
  'MultiHeadAttention.qk_norm=@PerHead',
)
PAIR = (f'{CONFIGS}/small_encoder_decoder.gin', 'num_layers=2')
IDS = np.random.default_rng(0).integers(3, 30, (2, 7))
# Sums over fewer heads are added in another order: float32 differs in the last bits.
TOLERANCE = 1e-6


def model_of(file, *settings):
  """Files, config, blueprint and random parameters of a model."""
  text = '\n'.join([*SIZE, *settings]) + '\n'
  files = [file, GinText(text, 'the sizes')]
  config = read_config(files)
  build, rng = config.build().complete_model(), np.random.default_rng(1)
  blueprint = Blueprint(jax.eval_shape(lambda: build(rngs=nnx.Rngs(0))))
  params = {
    name: jnp.asarray(rng.normal(scale=0.3, size=info.shape), jnp.float32)
    for name, info in blueprint.infos.items()
  }
  return files, config, blueprint, params


@jax.jit
def logits(model):
  pair = (IDS, IDS[:, :5]) if model.spec.is_encoder_decoder else (IDS,)
  return model(*map(jnp.asarray, pair)).x


@pytest.mark.parametrize('name', ['grouped', 'pair'])
def test_the_masked_model_equals_the_smaller_one(name):
  case = {'grouped': GROUPED, 'pair': PAIR}[name]
  files, config, blueprint, params = model_of(*case)
  heads = find_heads(blueprint.infos)
  rng = np.random.default_rng(3)
  order = removal_order({sublayer.name: rng.random(sublayer.shape) for sublayer in heads})
  # All but one group of some layers: layers differ.
  masks = remaining(heads, order[: 2 * len(order) // 3])
  smaller = cut(blueprint, params, heads, masks)
  text = GinText(pruned_gin(config, smaller, heads), 'the smaller model')
  new = read_config([*files, text], base=config)
  build = new.build().complete_model()
  pruned = Blueprint(jax.eval_shape(lambda: build(rngs=nnx.Rngs(0))))
  assert {n: i.shape for n, i in pruned.infos.items()} == {
    n: a.shape for n, a in smaller.params.items()
  }
  masked = logits(blueprint.model(scaled(params, heads, masks)))
  np.testing.assert_allclose(
    logits(pruned.model(smaller.params)), masked, atol=TOLERANCE * np.abs(masked).max()
  )
  assert np.abs(masked - logits(blueprint.model(params))).max() > 0.01 * np.abs(masked).max()


def test_layers_with_equal_numbers_of_heads_remain_stacked():
  _, _, blueprint, params = model_of(*ENCODER)
  heads = find_heads(blueprint.infos)
  (sublayer,) = heads
  smaller = cut(
    blueprint, params, heads, remaining(heads, [(sublayer.name, row, row) for row in range(3)])
  )
  assert smaller.stacks == {'body.stack': 1}
  kernel = params['body.stack.blocks.0.mixer.out.kernel']
  expected = np.stack([np.delete(kernel[row], row, axis=0) for row in range(3)])
  np.testing.assert_array_equal(smaller.params['body.stack.blocks.0.mixer.out.kernel'], expected)


def test_heads_of_every_stage_are_removed_from_their_own_layers():
  """Layers are numbered through all stages; here 1 in the first and 2 in the second."""
  attention = functools.partial(MultiHeadAttention, num_heads=4)
  block = functools.partial(
    Block, mixer=attention, feed_forward=functools.partial(MLP, hidden_dim=8)
  )
  stages = [functools.partial(Stack, num_layers=n, blocks=[block]) for n in (1, 2)]
  model = Stages(16, stages=stages, rngs=nnx.Rngs(0))
  blueprint = Blueprint(jax.eval_shape(lambda: model))
  params, heads = blueprint.params(model), find_heads(blueprint.infos)
  second = 'stages.1.blocks.0.mixer'
  assert {h.name: h.layers for h in heads} == {'stages.0.blocks.0.mixer': (0,), second: (1, 2)}
  smaller = cut(blueprint, params, heads, remaining(heads, [(second, 0, 3), (second, 1, 1)]))
  assert smaller.counts['stages.1'] == [{'mixer': 3}, {'mixer': 3}]
  kernel = params[f'{second}.out.kernel']
  expected = np.stack([np.delete(kernel[0], 3, axis=0), np.delete(kernel[1], 1, axis=0)])
  np.testing.assert_array_equal(smaller.params[f'{second}.out.kernel'], expected)


def test_every_layer_keeps_its_most_important_head():
  scores = {'mixer': np.array([[0.1, 0.2, 0.9], [0.8, 0.7, 0.3]])}
  assert removal_order(scores) == [
    ('mixer', 0, 0),
    ('mixer', 0, 1),
    ('mixer', 1, 2),
    ('mixer', 1, 1),
  ]


def test_counts_that_cannot_be_removed_are_refused():
  grouped = AttentionHeads('mixer', (0, 1), 3, 2)
  ranking = HeadScores([grouped], {'mixer': np.arange(6.0).reshape(2, 3)}, 'train', 8)
  assert _chosen(ranking, 4) == [('mixer', 0, 0), ('mixer', 0, 1)]
  with pytest.raises(UserError, match='2 query heads share one key-value head'):
    _chosen(ranking, 3)
  with pytest.raises(UserError, match='has 12 heads, of which at most 8 can be removed'):
    _chosen(ranking, 9)


REFUSED = {
  'shared layers': ((*ENCODER, 'Stack.num_groups=1'), 'layers share its parameters'),
  'biases': (
    (*ENCODER, 'Encoder.encoding=@T5Bias', 'T5Bias.num_heads=4', 'T5Bias.bidirectional=True'),
    'body.encoding.table has values for each head',
  ),
  'values of another size': (
    (*ENCODER, 'MultiHeadAttention.value_dim=8'),
    'mixer has other keys and values',
  ),
  'values that heads share': (
    (*ENCODER, 'MultiHeadAttention.key_values=@SharedValues'),
    'mixer has other keys and values',
  ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_models_whose_heads_cannot_be_removed_are_refused(name):
  case, message = REFUSED[name]
  _, _, blueprint, _ = model_of(*case)
  with pytest.raises(UserError, match=message):
    find_heads(blueprint.infos)
