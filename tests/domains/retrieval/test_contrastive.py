"""Contrastive learning of pairs of texts: padding, retrieval against a loop, and what is refused."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from applying import moved
from evaluating import evaluated
from flax import nnx
from loss_terms import gradient

from t2x.base.errors import UserError
from t2x.data import Bytes, Part
from t2x.domains.retrieval import (
  Contrastive,
  PairRows,
  Retrieval,
  RingSigmoid,
  Sigmoid,
  SigmoidInBlocks,
  Softmax,
  Tower,
  TwoTower,
)
from t2x.domains.retrieval.pair_losses import Scores
from t2x.layers import MLP, MultiHeadAttention, TokenEmbedding
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Encoder, LanguageModel, Stack, last_token, mean_tokens
from t2x.samples import BabelDates
from t2x.tasks import Mixture
from t2x.train import Experiment, Trainer
from t2x.train.checks import check_evaluations
from t2x.train.evaluation import Inference
from t2x.train.experiment import row_lengths
from t2x.train.groups import Groups
from t2x.train.params import Blueprint
from t2x.train.program import Program
from t2x.train.step import TrainState, make_train_step

TASK = Contrastive(source=BabelDates(), tokenizer=Bytes(), source_length=20, target_length=24)


EMBEDDING = functools.partial(TokenEmbedding, vocab_size=264)
BLOCK = functools.partial(
  Block,
  mixer=functools.partial(MultiHeadAttention, num_heads=2),
  feed_forward=functools.partial(MLP, hidden_dim=16),
)
BODY = functools.partial(Encoder, stack=functools.partial(Stack, num_layers=1, blocks=[BLOCK]))


def two_towers(pool=mean_tokens, **settings):
  tower = functools.partial(Tower, d_model=8, embedding=EMBEDDING, body=BODY, pool=pool)
  return TwoTower(a=tower, b=tower, dim=6, rngs=nnx.Rngs(0), **settings)


def random_batch(rows=6):
  rng = np.random.default_rng(0)
  batch = {n: rng.integers(5, 250, s.shape).astype(np.int32) for n, s in TASK.spec(rows).items()}
  for side in 'ab':
    lengths = rng.integers(1, 12, (rows, 1))
    batch[f'{side}_segments'] = (np.arange(batch[side].shape[1]) < lengths).astype(np.int32)
  return jax.tree.map(jnp.asarray, batch | {'weight': np.ones(rows, np.int32)})


@pytest.mark.parametrize('pool', [mean_tokens, last_token])
def test_padding_changes_no_vector(pool):
  model, batch = moved(two_towers(pool), scale=0.3), random_batch()
  vectors = [np.asarray(out.x) for out in TASK.vectors(model, batch)]
  changed = dict(batch)
  for side in 'ab':
    changed[side] = jnp.where(batch[f'{side}_segments'] != 0, batch[side], 7)
  for one, other in zip(vectors, TASK.vectors(model, changed), strict=True):
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(one, other.x, atol=1e-6)
  assert abs(vectors[0] - vectors[1]).max() > 0.1


def test_accumulation_is_refused_also_in_a_mixture():
  model, batch = two_towers(), random_batch()
  message = r'Trainer\.accumulate = 2: the loss of Contrastive compares all rows of a batch'
  with pytest.raises(UserError, match=message):
    gradient(TASK, model, batch, 2)
  mixture = Mixture(tasks={'dates': TASK})
  with pytest.raises(UserError, match=r'the loss of Mixture compares all rows'):
    gradient(mixture, model, batch, 2)


def test_another_model_is_refused():
  model = LanguageModel(d_model=8, embedding=EMBEDDING, body=BODY, rngs=nnx.Rngs(0))
  with pytest.raises(
    UserError, match=r'Contrastive needs a model that takes a \(ids\) and b \(ids\)'
  ):
    TASK.check_model(model)
  TASK.check_model(two_towers())


def test_the_factor_has_a_maximum():
  model = two_towers(temperature=0.1)
  assert float(model.factor) == pytest.approx(10, rel=1e-6)
  model.log_factor[...] = jnp.float32(9.0)
  assert float(model.factor) == 100
  model.max_factor = None
  assert float(model.factor) == pytest.approx(np.exp(9), rel=1e-5)
  with pytest.raises(UserError, match=r'the factor 100 is above max_factor = 50'):
    two_towers(temperature=0.01, max_factor=50.0)


def test_a_factor_above_its_maximum_has_a_gradient():
  model = two_towers()
  for value in (4.0, math.log(100), 9.0):
    model.log_factor[...] = jnp.float32(value)
    slope = jax.grad(lambda model: model.factor)(model).log_factor[...]
    assert float(slope) == pytest.approx(math.exp(value), rel=1e-5)


def test_a_step_clips_the_factor_as_clip_does_and_the_next_one_can_lower_it():
  """Steps with updates of 1, 1 and -1, from a temperature of 0.02."""
  model, batch = two_towers(temperature=0.02), random_batch()
  blueprint = Blueprint(jax.eval_shape(lambda: model))
  params, groups = blueprint.params(model), Groups((), blueprint.infos)
  up = optax.GradientTransformation(
    lambda params: jnp.float32(0),
    lambda grads, count, params: (
      jax.tree.map(lambda a: jnp.ones_like(a) * jnp.where(count < 2, 1, -1), params),
      count + 1,
    ),
  )
  trainer = Trainer(num_steps=3, batch_size=6)
  step = jax.jit(make_train_step(TASK, trainer, up, blueprint, groups))
  state, factors = TrainState(jnp.int32(0), params, up.init(params), jax.random.key(0)), []
  for _ in range(3):
    state, _ = step(state, {}, batch)
    factors.append(float(blueprint.model(state.params).factor))
  np.testing.assert_allclose(factors, [100, 100, 100 / math.e], rtol=1e-5)


def test_a_row_of_padding_has_finite_gradients():
  model, batch = moved(two_towers(), scale=0.3), random_batch()
  batch['a_segments'] = batch['a_segments'].at[2].set(0)
  grads, _ = gradient(TASK, model, batch)
  infinite = [name for name, leaf in named_leaves(grads) if not np.isfinite(leaf).all()]
  assert not infinite, (infinite, len(jax.tree.leaves(grads)))


def test_retrieval_counts_the_keys_that_are_closer(monkeypatch, tmp_path):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))
  task, model = TASK.bound(Bytes().train([])), moved(two_towers(), scale=0.3)
  rows = [task.rows('validation')[i] for i in range(23)]
  result = Retrieval()(evaluated(task, model, rows, 8))
  batch = {
    name: jnp.stack([jnp.asarray(task.transform(train=False)(r, None)[name]) for r in rows])
    for name in task.spec(1)
  }
  a, b = (np.asarray(out.x, np.float64) for out in task.vectors(model, batch))
  for prefix, queries, keys in (('', a, b), ('reverse_', b, a)):
    ranks = []
    for i in range(23):
      scores = [float(queries[i] @ keys[j]) for j in range(23)]
      ranks.append(1 + sum(score > scores[i] for score in scores))
    expected = {
      'recall_1': np.mean([rank == 1 for rank in ranks]),
      'recall_10': np.mean([rank <= 10 for rank in ranks]),
      'mean_reciprocal_rank': np.mean([1 / rank for rank in ranks]),
    }
    for name, value in expected.items():
      assert result.metrics[prefix + name] == pytest.approx(value, abs=1e-6)
  assert result.examples['recall_1'].shape == (23,)


def keys_of_one_place(count=600, dim=96):
  """Equal vectors, whose products differ by rounding where a matrix product treats its last columns apart."""
  rng = np.random.default_rng(0)
  b = np.repeat(rng.normal(size=(1, dim)), count, axis=0)
  a = rng.normal(size=(count, dim))
  return [(x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in (a, b)]


def retrieved(a, b):
  """The metrics of vectors."""

  class Vectors:
    task, rows = TASK, staticmethod(lambda split: range(len(a)))

    @staticmethod
    def predict(rows, function):
      return zip(rows, zip(a, b, strict=True), strict=True)

  return Retrieval()(Vectors).metrics


def test_equal_keys_are_retrieved_by_no_query():
  a, b = keys_of_one_place()
  assert retrieved(a, b)['recall_10'] == 0
  # The reverse has equal queries and different keys: one of them has the closest one.
  assert retrieved(a, b)['reverse_recall_1'] == pytest.approx(1 / 600)
  assert retrieved(b, b)['recall_10'] == retrieved(b, b)['reverse_recall_10'] == 0
  assert retrieved(a, a)['recall_1'] == 1


def test_vectors_of_nan_are_last():
  a, _ = keys_of_one_place(20)
  broken = a.copy()
  broken[5] = np.nan
  found = retrieved(a, broken)
  # A text of NaN is before the text of every other source, and its own is last.
  assert found['recall_1'] == 0 and found['recall_10'] == 19 / 20
  assert found['mean_reciprocal_rank'] == pytest.approx((19 / 2 + 1 / 20) / 20)
  assert found['reverse_recall_1'] == 19 / 20
  assert retrieved(broken * np.nan, broken)['recall_10'] == 0


@pytest.mark.parametrize('loss', [Softmax(), Sigmoid(), SigmoidInBlocks(size=8), RingSigmoid()])
def test_equal_vectors_and_nan_are_wrong_in_a_batch(loss):
  a, b = keys_of_one_place(40)
  rows = PairRows(jnp.arange(40), jnp.ones(40, bool))
  correct = {
    name: np.asarray(loss(jnp.asarray(x), jnp.asarray(y), Scores(jnp.float32(9)), rows).correct)
    for name, (x, y) in {
      'right': (a, a),
      'equal': (a, b),
      'both': (b, b),
      'nan': (a * np.nan, b),
      'some': (a, np.where(np.arange(40)[:, None] == 3, np.nan, a)),
    }.items()
  }
  assert correct.pop('right').all()
  assert not any(values.any() for values in correct.values())


def test_evaluation_compares_the_same_pairs_whatever_the_batch(monkeypatch, tmp_path):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))
  source = Part(source=BabelDates(), examples={'train': 50, 'validation': 50})
  task = dataclasses.replace(TASK, source=source, eval_rows=16)
  experiment = Experiment(model=lambda rngs: moved(two_towers(), scale=0.3), task=task)
  found = {}
  for size in (7, 16, 24):
    inference = Inference(experiment, Bytes().train([]), batch_size=size)
    params = inference.program.blueprint.params(moved(two_towers(), scale=0.3))
    found[size] = inference.evaluation(params, 'validation').metrics
    # Predictions keep the batch of the run.
    assert inference.batch_size == size
  assert found[7] == found[16] == found[24]
  other = dataclasses.replace(experiment, task=dataclasses.replace(task, eval_rows=50))
  inference = Inference(other, Bytes().train([]), batch_size=16)
  assert inference.evaluation(params, 'validation').metrics['loss'] > found[16]['loss']


def test_blocks_that_do_not_divide_the_pairs_of_an_evaluation_are_refused_before_training():
  task = dataclasses.replace(TASK, loss=SigmoidInBlocks(size=48), eval_rows=64)
  experiment = Experiment(model=lambda rngs: two_towers(), task=task)
  program = Program(experiment.bound(Bytes().train([])), batch_size=96)
  with pytest.raises(UserError, match=r'SigmoidInBlocks\.size = 48 must divide the 64 rows'):
    check_evaluations(program)


def test_flops_are_counted_per_token_of_both_towers():
  assert row_lengths(TASK, two_towers()) == {'a': 20, 'b': 24}
