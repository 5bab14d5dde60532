"""A mixture trains tasks of one class together and evaluates each by itself."""

import dataclasses
import math
import re

import jax
import numpy as np
import pytest
from loss_terms import TASKS, batch_of, gradient, model_of

from t2x.base.errors import UserError
from t2x.data import (
  BPE,
  TSV,
  Bytes,
  FixedWeights,
  Joined,
  Prefixed,
  ProportionalWeights,
  StagedWeights,
  TextFiles,
)
from t2x.tasks import CausalLM, MaskedLM, Mixture, SpanCorruption, Translation

BYTES = Bytes().train([])


@pytest.fixture
def text(tmp_path, monkeypatch):
  """Sources of few and of many lines; the many are in the test split too."""
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  sizes = {'few': 8, 'many': 24}
  for name, size in sizes.items():
    lines = [f'{name} foxes jump over {i} lazy dogs' for i in range(size)]
    (tmp_path / f'{name}.txt').write_text('\n'.join(lines))
  few, many = (str(tmp_path / f'{name}.txt') for name in sizes)
  return {
    'few': TextFiles(train=few, validation=few, per_line=True),
    'many': TextFiles(train=many, validation=many, test=many, per_line=True),
  }


def causal(source, **settings):
  return CausalLM(**{'source': source, 'tokenizer': Bytes(), 'length': 32} | settings)


def mixture(text, **settings):
  return Mixture(tasks={name: causal(source) for name, source in text.items()}, **settings)


def test_rows_are_drawn_by_the_weights(text):
  made = mixture(text, sampling=FixedWeights({'few': 3.0, 'many': 1.0})).bound(BYTES)
  rows = made.rows('train')
  batches = made.batches(rows, batch_size=8, seed=0)
  counts = np.bincount(np.concatenate([batches[step]['task'] for step in range(10)]))
  assert counts.tolist() == [60, 20]
  batch = batches[0]
  assert {k: (v.shape, v.dtype) for k, v in batch.items()} == {
    k: (v.shape, v.dtype) for k, v in made.spec(8).items()
  }
  for row, number in zip(batch['tokens'], batch['task'], strict=True):
    shown = BYTES.decode(row[row > 8].tolist())
    assert ('few' in shown) == (number == 0)
  assert made.count(batch) == np.count_nonzero(batch['segments'])
  told = made.describe_rows(rows, 10, 8)
  assert re.search(r'few 8 rows, 75\.00% of the rows read, 7\.5 epochs', told), told
  late = StagedWeights([(0, FixedWeights({'few': 1.0, 'many': 0.0})), (6, made.sampling)])
  told = dataclasses.replace(made, sampling=late).describe_rows(rows, 10, 8)
  assert 'few 8 rows, 90.00% of the rows read' in told


def test_the_loss_weights_count_in_the_gradient():
  task = TASKS['mixture']
  batch = batch_of(task)
  (first, *_) = task.tasks.values()
  model = model_of(task)
  plain = {k: v for k, v in batch.items() if k not in ('task', 'loss_weight')}
  # By hand: the weights of the predictions carry those of the rows.
  weighted = plain | {'weights': plain['weights'] * batch['loss_weight'][:, None]}
  expected, _ = gradient(first, model, weighted)
  found, _ = gradient(task, model, batch)
  unweighted, _ = gradient(first, model, plain)
  for a, b, c in zip(*map(jax.tree.leaves, (found, expected, unweighted)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    assert not np.allclose(a, c, rtol=1e-3) or not np.any(a)


def test_loss_weights_of_rows(text):
  made = mixture(text, loss_weights={'many': 0.25}).bound(BYTES)
  batch = made.batches(made.rows('train'), batch_size=16, seed=0)[0]
  assert set(zip(batch['task'].tolist(), batch['loss_weight'].tolist(), strict=True)) == {
    (0, 1.0),
    (1, 0.25),
  }


def test_metrics_are_combined_without_the_sizes():
  metrics = {
    'a': {'loss': 1.0, 'perplexity': math.e, 'bits_per_byte': 2.0, 'eval_tokens': 10.0},
    'b': {'loss': 3.0, 'perplexity': math.e**3, 'eval_tokens': 90.0},
  }
  combined = TASKS['mixture'].combine(metrics)
  expected = {'loss': 2.0, 'perplexity': math.e**2, 'eval_tokens': 100.0}
  assert combined == pytest.approx(
    {f'{name}/{key}': value for name, part in metrics.items() for key, value in part.items()}
    | expected
  )


def test_the_tokenizer_is_trained_on_all_sources(text):
  only = {'few': text['few']}
  texts = list(mixture(text).tokenizer_texts())
  assert [one.split()[0] for one in texts[:4]] == ['few', 'many', 'few', 'many']
  assert len(texts) == 32
  tokenizers = []
  for sources in (text, only):
    tasks = {name: causal(source, tokenizer=BPE(270)) for name, source in sources.items()}
    made = Mixture(tasks=tasks)
    assert not made.is_fitted()
    tokenizers.append(made.fit_tokenizer())
    assert made.is_fitted()
  assert tokenizers[0].fingerprint != tokenizers[1].fingerprint


def test_text_to_text_with_prefixes(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  (tmp_path / 'pairs.tsv').write_text('one\tuno\ntwo\tdos\n')
  pairs = TSV(train=str(tmp_path / 'pairs.tsv'))
  settings = {'tokenizer': Bytes(), 'source_length': 64, 'target_length': 32}
  tasks = {
    name: Translation(source=Prefixed(source=pairs, prefix=f'{name}: '), **settings)
    for name in ('es', 'back')
  }
  made = Mixture(tasks=tasks).bound(BYTES)
  batch = made.batches(made.rows('train'), batch_size=2, seed=0)[0]
  sources = {BYTES.decode(row[row > 8].tolist()) for row in batch['source']}
  assert sources == {'es: onees: two', 'back: oneback: two'}


def test_joined_fields_are_one_text(tmp_path):
  (tmp_path / 'pairs.tsv').write_text('one\tuno\ntwo\tdos\n')
  pairs = TSV(train=str(tmp_path / 'pairs.tsv'))
  joined = Joined(source=pairs, separator=' = ')
  assert list(joined.load('train')) == [{'text': 'one = uno'}, {'text': 'two = dos'}]
  assert joined.load('train')[1:] == [{'text': 'two = dos'}]
  assert joined.splits() == ('train',)
  changed = [
    joined,
    dataclasses.replace(joined, separator=''),
    pairs,
    Prefixed(source=pairs, prefix='a'),
  ]
  assert len({source.fingerprint() for source in changed}) == 4
  with pytest.raises(UserError, match=re.escape("have no text 'text': they have source, target")):
    Joined(source=pairs, fields=('text',)).load('train')[0]


def denoiser(source, **settings):
  shared = {'tokenizer': Bytes(), 'source_length': 32, 'padded_target': 40, 'eval_split': 'train'}
  return SpanCorruption(source=source, **shared | settings)


def test_denoisers_share_one_shape_and_begin_with_their_prefix(text):
  tasks = {
    'r': denoiser(text['many'], prefix='[R]'),
    'x': denoiser(text['many'], prefix='[X] ', rate=0.5),
    's': denoiser(text['many'], prefix='[S]', rate=0.25, mean_span=1e9),
  }
  made = Mixture(tasks=tasks, sampling=FixedWeights({'r': 1.0, 'x': 1.0, 's': 1.0})).bound(BYTES)
  batch = made.batches(made.rows('train'), batch_size=12, seed=0)[0]
  assert batch['source'].shape == (12, 32) and batch['target'].shape == (12, 40)
  everything = ''.join(example['text'] for example in text['many'].load('train'))
  starts = {0: '[R]', 1: '[X] ', 2: '[S]'}
  for row in range(12):
    number, source, target = (batch[k][row] for k in ('task', 'source', 'target'))
    prefix = BYTES.encode(starts[int(number)])
    assert source[: len(prefix)].tolist() == prefix
    ids = source[batch['source_segments'][row] != 0]
    assert ids[-1] == BYTES.eos_id and len(ids) in (31, 32)
    sentinels = ids[ids >= BYTES.vocab_size]
    hidden = target[batch['target_segments'][row] != 0]
    assert hidden[hidden >= BYTES.vocab_size].tolist() == sentinels.tolist()
    # Each sentinel of the source is replaced by what follows it in the target.
    filled = ids[len(prefix) : -1].tolist()
    for sentinel in sentinels.tolist():
      start = hidden.tolist().index(sentinel) + 1
      span = []
      for token in hidden[start:-1].tolist():
        if token >= BYTES.vocab_size:
          break
        span.append(token)
      at = filled.index(sentinel)
      filled[at : at + 1] = span
    assert BYTES.decode([i for i in filled if i != BYTES.eos_id]) in everything
    if number == 2:
      assert len(sentinels) == 1 and ids[-2] == sentinels[0]


def test_a_padded_target_that_is_too_short_is_refused(text):
  with pytest.raises(UserError, match='padded_target = 5: targets have up to 8 tokens'):
    denoiser(text['few'], padded_target=5)


A = {'source': TextFiles(train='none'), 'tokenizer': Bytes(), 'length': 8}


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'source': A['source']}, 'Mixture.source is set: set source of the tasks instead'),
    ({'eval_split': 'test'}, 'Mixture.eval_split is set'),
    ({'loss_weights': {'c': 1.0}}, "Mixture.loss_weights has 'c', but the tasks are a, b"),
    ({'tasks': {'a/b': CausalLM(**A)}}, "the name 'a/b' must not contain '/'"),
    (
      {'tasks': {'a': CausalLM(**A), 'b': MaskedLM(**A)}},
      "Mixture.tasks['b'] is @MaskedLM, but 'a' is @CausalLM: the tasks of a mixture have one class",
    ),
    (
      {'tasks': {'a': CausalLM(**A), 'b': CausalLM(**A | {'length': 9})}},
      "Mixture.tasks['b'] has length = 9, but 'a' has 8: tasks of a mixture may differ only in "
      'eval_split, pieces, source, strategy, train_split',
    ),
    (
      {'tasks': {'a': CausalLM(**A), 'b': CausalLM(**A, z_loss=1e-4)}},
      "Mixture.tasks['b'] has z_loss = 0.0001, but 'a' has 0.0",
    ),
    (
      {'tasks': {'a': CausalLM(**A), 'b': CausalLM(**A | {'tokenizer': BPE(300)})}},
      "Mixture.tasks['b'] has tokenizer = BPE(",
    ),
    (
      {'tasks': {'a': MaskedLM(**A), 'b': MaskedLM(**A, rate=0.5)}},
      "Mixture.tasks['b'] has rows with 'labels' ((1, 4), 'int32'), but 'a' has ((1, 2), 'int32'): give "
      'all tasks rows of one shape',
    ),
    ({'tasks': {'a': TASKS['mixture']}}, "Mixture.tasks['a'] is a mixture: list its tasks instead"),
  ],
)
def test_unsupported_calls_are_refused(settings, message):
  tasks = {'a': CausalLM(**A), 'b': CausalLM(**A)}
  with pytest.raises(UserError, match=re.escape(message)):
    Mixture(**{'tasks': tasks, 'sampling': ProportionalWeights()} | settings)


def test_errors_name_the_task(text):
  made = mixture({'few': text['few'], 'many': text['many']}).bound(BYTES)
  with pytest.raises(UserError, match=re.escape("Mixture.tasks['few']: no split 'test'")):
    made.check_split('test')
