"""Detection of replaced tokens: sampling, when a token counts as replaced, runs that start from the discriminator."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tasks
from applying import moved
from flax import nnx
from loss_terms import Bag, gradient

from t2x.base.errors import UserError
from t2x.data import Batches, Bytes, TextFiles
from t2x.layers import MLP, LayerNorm, LearnedPositions, MultiHeadAttention, TokenEmbedding
from t2x.layers.arrays import named_leaves
from t2x.models import (
  Block,
  Classifier,
  Encoder,
  LanguageModel,
  MaskedLMHead,
  SequenceClassifier,
  Stack,
  WithGenerator,
)
from t2x.tasks import CausalLM, MarkStarts, MaskedLM, ReplacedTokenDetection
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.init_from import InitFrom

part = functools.partial
BLOCK = part(
  Block, mixer=part(MultiHeadAttention, num_heads=2), feed_forward=part(MLP, hidden_dim=12)
)
BODY = part(Encoder, stack=part(Stack, num_layers=1, blocks=[BLOCK]))
POSITIONS = {'encoding': part(LearnedPositions, max_length=32), 'input_norm': LayerNorm}


def model_of(**settings):
  defaults = {
    'body': part(BODY, **POSITIONS),
    'generator': part(BODY, input_dim=8),
    'head': part(MaskedLMHead, embedding_dim=8),
  }
  return WithGenerator(
    d_model=8,
    generator_dim=4,
    embedding=part(TokenEmbedding, vocab_size=264),
    **defaults | settings,
    rngs=nnx.Rngs(0),
  )


@pytest.fixture(scope='module')
def task(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  tiny_tasks.write_data(folder)
  task = MaskedLM(
    source=TextFiles(train=str(folder / 'text.txt')),
    tokenizer=Bytes(),
    length=32,
    rate=0.3,
    mask_rate=0.85,
    random_rate=0.0,
    auxiliaries={'detection': ReplacedTokenDetection()},
  )
  return task.bound(task.fit_tokenizer())


@pytest.fixture(scope='module')
def batch(task):
  rows = task.rows('train')
  # The last row has padding.
  picked = [rows[i] for i in (*range(7), len(rows) - 1)]
  batch = Batches(picked, task.transform(train=True), batch_size=8, seed=0)[0]
  assert (batch['segments'] == 0).any()
  return {name: jnp.asarray(array) for name, array in batch.items()}


@pytest.fixture(scope='module')
def model():
  return moved(model_of(), scale=0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Half(ReplacedTokenDetection):
  """Replaces the predicted tokens at even places of the list by another token, and the others by themselves."""

  def samples(self, model, out, batch, key):
    even = jnp.arange(batch['labels'].shape[1]) % 2 == 0
    return batch['labels'] + even


def test_a_sample_that_equals_the_original_token_counts_as_original(task, batch, model):
  half = Half()
  out = jax.jit(task.hidden)(model, batch, None)
  metrics = half(model, out, batch, None, None).metrics
  used = np.asarray(batch['weights']) > 0
  even = np.arange(used.shape[1]) % 2 == 0
  present = np.asarray(batch['segments']) != 0
  assert [float(n) for n in metrics['replaced']] == [(used & even).sum(), present.sum()]
  ids, replaced = np.array(batch['tokens']), np.zeros(batch['tokens'].shape, bool)
  for row, (places, labels) in enumerate(
    zip(np.asarray(batch['masked_positions']), np.asarray(batch['labels']), strict=True)
  ):
    for i in np.flatnonzero(used[row]):
      ids[row, places[i]] = labels[i] + even[i]
      replaced[row, places[i]] = even[i]
  logits = np.asarray(model.detect(jnp.asarray(ids), tokens=out.tokens).x, np.float64)
  p = 1 / (1 + np.exp(-logits))
  losses = -np.log(np.where(replaced, p, 1 - p))[present]
  assert float(metrics['loss'][0]) == pytest.approx(losses.sum(), rel=1e-5)
  found = logits > 0
  assert float(metrics['accuracy'][0]) == (found == replaced)[present].sum()
  hits = (found & replaced)[present].sum()
  assert [float(n) for n in metrics['recall']] == [hits, replaced.sum()]
  assert [float(n) for n in metrics['precision']] == [hits, found[present].sum()]


class Constant(Bag):
  """The same logits for each token."""

  def logits(self, x):
    return jnp.broadcast_to(jnp.log(jnp.array([0.0, 0.5, 0.2, 0.3])), (*x.shape[:2], 4))


def test_samples_have_the_frequencies_of_the_generator(task, batch):
  keys = jax.random.split(jax.random.key(3), (500, len(batch['tokens'])))
  model = Constant(512, nnx.Rngs(0))
  out = model.hidden(batch['tokens'])
  draw = jax.jit(jax.vmap(lambda key: ReplacedTokenDetection().samples(model, out, batch, key)))
  counts = np.bincount(np.asarray(draw(keys)).reshape(-1), minlength=4)
  total = counts.sum()
  p = np.array([0.0, 0.5, 0.2, 0.3])
  assert (np.abs(counts - total * p) <= 5 * np.sqrt(total * p * (1 - p))).all()
  # Rows with other tokens have other samples, also in evaluation.
  fixed = ReplacedTokenDetection().samples(model, out, batch, None)
  assert len(np.unique(fixed, axis=0)) == len(fixed)


def test_samples_in_evaluation_depend_only_on_their_row(task, batch, model):
  detection = task.auxiliaries['detection']

  @jax.jit
  def drawn(batch, key):
    return detection.samples(model, task.hidden(model, batch, None), batch, key)

  fixed = drawn(batch, None)
  turned = jax.tree.map(lambda a: a[::-1], batch)
  np.testing.assert_array_equal(drawn(turned, None)[::-1], fixed)
  keys = jax.random.split(jax.random.key(0), len(fixed))
  assert (np.asarray(drawn(batch, keys)) != fixed).mean() > 0.5


def test_micro_batches_draw_the_same_samples(task, batch, model):
  whole, metrics = gradient(task, model, batch)
  parts, of_parts = gradient(task, model, batch, 4)
  assert float(metrics['detection_replaced'][0]) == float(of_parts['detection_replaced'][0]) > 0
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), parts, whole)
  detector = whole.detector.out.kernel[...]
  assert np.abs(detector).max() > 1e-3
  total = sum(float(np.divide(*metrics[name])) for name in ('loss', 'detection'))
  loss = float(np.divide(*metrics['detection_loss']))
  assert total == pytest.approx(float(np.divide(*metrics['loss'])) + 50 * loss, rel=1e-5)


def test_a_classifier_starts_from_the_discriminator(model, tmp_path):
  """The embedding, the positions and the body of the discriminator are loaded; nothing of the generator is."""
  checkpoints = Checkpoints(tmp_path / 'run' / 'checkpoints', best_metric='loss', best_mode='min')
  checkpoints.save(1, {'params': dict(named_leaves(model))})
  checkpoints.close()
  classifier = LanguageModel(
    d_model=8,
    embedding=part(TokenEmbedding, vocab_size=264),
    body=part(BODY, **POSITIONS),
    head=part(SequenceClassifier, classifier=part(Classifier, num_classes=2)),
    rngs=nnx.Rngs(1),
  )
  own = dict(named_leaves(classifier))
  load, table = InitFrom(run=str(tmp_path / 'run')).plan(own)
  expected = dict(named_leaves(model))
  for name, array in load().items():
    if not name.startswith('head.'):
      np.testing.assert_array_equal(array, expected[name], err_msg=name)
  news = {line.split()[0] for line in table.splitlines() if 'new (' in line}
  assert news == {name for name in own if name.startswith('head.')}
  unused = {line.split()[-2] for line in table.splitlines()[1:] if line.endswith(' unused')}
  assert {name.split('.')[0] for name in unused} == {'generator', 'head', 'detector'}


def test_models_and_tasks_that_have_no_replaced_tokens_are_refused(task):
  task.check_model(jax.eval_shape(model_of))
  plain = LanguageModel(
    d_model=8, embedding=part(TokenEmbedding, vocab_size=264), body=BODY, rngs=nnx.Rngs(0)
  )
  with pytest.raises(UserError, match=r'set Experiment\.model = @WithGenerator'):
    task.check_model(plain)
  detection = task.auxiliaries
  causal = CausalLM(source=task.source, tokenizer=task.tokenizer, length=8, auxiliaries=detection)
  with pytest.raises(UserError, match="reads the column 'masked_positions'"):
    detection['detection'].check_model(plain, causal)
  marked = dataclasses.replace(task, marks={'starts': MarkStarts()})
  with pytest.raises(UserError, match='marks are those of the masked tokens'):
    detection['detection'].check_model(jax.eval_shape(model_of), marked)


@pytest.mark.parametrize('settings', [*POSITIONS, 'input_dropout'])
def test_a_generator_with_an_input_of_its_own_is_refused(settings):
  value = (POSITIONS | {'input_dropout': 0.1})[settings]
  with pytest.raises(UserError, match='gets tokens with the positions, the norm and the dropout'):
    model_of(generator=part(BODY, input_dim=8, **{settings: value}))
