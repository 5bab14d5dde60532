"""Evaluators: what they read, how they score, and when they refuse."""

import types

import pytest
import sacrebleu

from t2x.base.errors import UserError
from t2x.data import Bytes
from t2x.data.sources.base import NoSource
from t2x.decode import Greedy
from t2x.tasks import Answers, CausalLM, Losses, Samples, Translation, Translations
from t2x.tasks.evaluators import Evaluation

PAIRS = [{'source': 'x' * (7 - i), 'target': f'the cat number {i} sat here'} for i in range(7)]


class Pairs(NoSource):
  """Seven pairs, the longest source first."""

  def splits(self):
    return ('validation',)

  def load(self, split):
    return PAIRS


def translation(**settings):
  lengths = {'source_length': 8, 'target_length': 32}
  task = Translation(source=Pairs(), tokenizer=Bytes(), **lengths, **settings)
  return task.bound(Bytes().train([]))


def evaluated(task):
  return types.SimpleNamespace(task=task, watched=iter, model=lambda: None)


@pytest.fixture
def generated(monkeypatch):
  """Translations by a model that always forgets the last word; the batches that it was given."""
  batches = []
  by_source = {pair['source']: pair['target'].rpartition(' ')[0] for pair in PAIRS}

  def generate(self, model, prompts, *, strategy, max_new_tokens):
    batches.append((list(prompts), strategy))
    return [[{'text': by_source[prompt], 'score': 0.0}] for prompt in prompts]

  monkeypatch.setattr(Translation, 'generate', generate)
  return batches


def test_translations_are_scored_as_sacrebleu_scores_them(generated):
  result = Translations(batch_size=3)(evaluated(translation(strategy=Greedy())))
  outputs = [pair['target'].rpartition(' ')[0] for pair in PAIRS]
  targets = [[pair['target'] for pair in PAIRS]]
  assert result.metrics['bleu'] == pytest.approx(sacrebleu.corpus_bleu(outputs, targets).score)
  assert result.metrics['chrf'] == pytest.approx(sacrebleu.corpus_chrf(outputs, targets).score)
  assert 0 < result.metrics['bleu'] < 100
  assert (result.metrics['examples'], result.metrics['exact_match']) == (7.0, 0.0)
  assert 'tok:13a' in result.metrics['bleu_signature']
  assert [sample['output'] for sample in result.samples] == outputs
  # Sources of one length share a batch, and the last batch is filled up.
  lengths = [list(map(len, prompts)) for prompts, _ in generated]
  assert lengths == [[1, 2, 3], [4, 5, 6], [7, 7, 7]]
  assert {strategy for _, strategy in generated} == {Greedy()}


def test_some_examples_are_spread_over_the_split(generated):
  result = Translations(batch_size=3, num_examples=3)(evaluated(translation()))
  assert [sample['source'] for sample in result.samples] == ['x' * 7, 'x' * 5, 'x' * 3]
  assert result.metrics['examples'] == 3.0


def test_the_language_decides_how_bleu_splits_words(generated):
  result = Translations(language='zh', batch_size=7)(evaluated(translation()))
  assert 'tok:zh' in result.metrics['bleu_signature']


def test_an_evaluator_of_another_task_is_refused():
  causal = CausalLM(source=Pairs(), tokenizer=Bytes(), length=8)
  with pytest.raises(
    UserError,
    match='Translations evaluates @Translation and @PrefixLM and @Captions, not @CausalLM',
  ):
    Translations().check(causal, None)
  with pytest.raises(UserError, match='Answers evaluates @SpanPrediction, not @CausalLM'):
    Answers().check(causal, None)
  with pytest.raises(UserError, match='Samples evaluates @CausalLM, not @Translation'):
    Samples(prompts=['a']).check(translation(), None)


def test_settings_that_would_be_ignored_are_refused():
  with pytest.raises(UserError, match=r'Samples reads only its prompts'):
    Samples(prompts=['a'], num_examples=3)


def test_losses_reads_the_requested_number_of_rows_of_its_split():
  asked = []

  def evaluation(split, num_rows):
    asked.append((split, num_rows))
    return Evaluation({'loss': 1.0})

  task = CausalLM(source=Pairs(), tokenizer=Bytes(), length=8)
  given = types.SimpleNamespace(task=task, evaluation=evaluation)
  assert Losses()(given).metrics == {'loss': 1.0}
  Losses(split='test', num_examples=5)(given)
  assert asked == [('validation', None), ('test', 5)]
