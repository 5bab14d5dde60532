"""A sweep compares a metric only if all variants compute it on the same examples, and by the same tokens."""

import dataclasses

import pytest

from t2x.base.errors import UserError
from t2x.data import Bytes, Characters, TextFiles
from t2x.domains.retrieval import Contrastive, Retrieval, Sigmoid
from t2x.samples import BabelDates, Digits
from t2x.sweeps.evaluated import evaluated
from t2x.sweeps.plan import make_plan
from t2x.sweeps.sweep import read_sweep
from t2x.tasks import CausalLM, ImageClassification, Losses, Mixture, SequenceClassification
from t2x.train import Experiment

IMAGES = ImageClassification(
  source=Digits(), image_shape=(8, 8, 1), num_classes=10, eval_split='test'
)


@pytest.fixture
def texts(tmp_path):
  """`texts(train, validation)`: a source of two text files, in new files for each call."""

  def write(train, validation='a line of text\n'):
    folder = tmp_path / str(len([*tmp_path.iterdir()]))
    folder.mkdir()
    for name, text in (('train', train), ('validation', validation)):
      (folder / f'{name}.txt').write_text(text)
    return TextFiles(train=str(folder / 'train.txt'), validation=str(folder / 'validation.txt'))

  return write


def language_model(source, tokenizer=None):
  return CausalLM(source=source, tokenizer=tokenizer or Bytes(), length=32)


def difference(task, other, metric='loss', **evaluations):
  sides = (
    evaluated(Experiment(task=side, evaluations=evaluations), metric) for side in (task, other)
  )
  return next(sides).difference(next(sides))


def test_settings_of_training_are_comparable():
  assert difference(IMAGES, dataclasses.replace(IMAGES, label_smoothing=0.1), 'accuracy') == ''


def test_other_examples_are_not_comparable(texts):
  other = dataclasses.replace(IMAGES, eval_split='train')
  assert difference(other, IMAGES) == f"on other data, the split 'train' of {Digits().describe()}"
  model, changed = (language_model(texts('abc', text)) for text in ('some text\n', 'other text\n'))
  assert difference(model, changed, 'bits_per_byte').startswith('on other data')


def test_equal_examples_of_other_files_are_comparable(texts):
  assert difference(language_model(texts('abc\n')), language_model(texts('other\n'))) == ''


def test_losses_per_token_need_equal_tokenizers(texts):
  source = texts('abc\n' * 50)
  model, other = language_model(source), language_model(source, Characters(vocab_size=20))
  assert difference(model, other) == (
    'by tokens of another tokenizer (bits_per_byte would be comparable)'
  )
  assert difference(model, other, 'bits_per_byte') == ''
  # The same settings, trained on other text.
  more = language_model(texts('abcdefgh\n' * 50), Characters(vocab_size=20))
  assert 'another tokenizer' in difference(other, more)
  equal = language_model(texts('abc\n' * 50), Characters(vocab_size=20))
  assert difference(other, equal) == ''


def test_classes_of_texts_do_not_depend_on_the_tokenizer(texts):
  def classifier(tokenizer):
    return SequenceClassification(
      source=texts('abc\n'), tokenizer=tokenizer, length=32, labels=('0', '1')
    )

  assert difference(classifier(Bytes()), classifier(Characters(vocab_size=20)), 'accuracy') == ''


def test_metrics_that_depend_on_the_rows_of_a_batch_need_equal_ones():
  """Accuracy of pairs is a choice among the pairs of a batch; recall is one among all of the split."""
  task = Contrastive(source=BabelDates(), tokenizer=Bytes(), source_length=20, target_length=24)
  more = dataclasses.replace(task, eval_rows=32)
  for metric in ('accuracy', 'loss', 'held_out/accuracy'):
    found = difference(task, more, metric, held_out=Losses(), all_pairs=Retrieval())
    assert found == 'over 64 rows at once, and not over 32'
  assert difference(task, more, 'all_pairs/recall_1', all_pairs=Retrieval()) == ''
  assert difference(task, dataclasses.replace(task, loss=Sigmoid()), 'accuracy') == ''


def test_an_evaluator_has_its_own_data_and_the_tokenizer_of_the_run(texts):
  own = Losses(task=language_model(texts('abc\n')))
  model = language_model(texts('abc\n', 'some text\n'))
  other = language_model(texts('abc\n', 'other text\n'))
  assert difference(model, other).startswith('on other data')
  assert difference(model, other, 'held_out/loss', held_out=own) == ''
  by_characters = dataclasses.replace(model, tokenizer=Characters(vocab_size=20))
  assert 'another tokenizer' in difference(model, by_characters, 'held_out/loss', held_out=own)


def test_a_task_of_a_mixture_is_compared_with_the_same_task(texts):
  tasks = {name: language_model(texts('abc\n', f'{name}\n')) for name in ('a', 'b', 'c')}
  first = Mixture(tasks={'one': tasks['a'], 'two': tasks['b']})
  other = Mixture(tasks={'one': tasks['a'], 'two': tasks['c']})
  assert difference(first, other, 'one/loss') == ''
  assert difference(first, other, 'two/loss').startswith('on other data')
  assert difference(first, other).startswith('on other data')
  assert difference(first, Mixture(tasks={'one': tasks['a']})) == 'on other data'


def test_the_variant_is_named(sweep_file):
  variants = "{'gelu': {}, 'train': {'ImageClassification.eval_split': 'train'}}"
  with pytest.raises(UserError) as caught:
    make_plan(read_sweep(sweep_file(variants)))
  assert caught.value.exit_code == 2
  assert (
    "variant 'train': loss is not comparable with the baseline: it is computed on other data"
    in (str(caught.value))
  )
