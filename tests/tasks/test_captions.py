"""Captions: rows of images and texts, and what a model must read."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from fake_models import spec
from flax import nnx

from t2x.base.errors import UserError
from t2x.data import Bytes
from t2x.data.prepared_folders import fingerprint
from t2x.data.tokenizers.characters import CharacterTokenizer
from t2x.decode import Greedy
from t2x.experiments import read_config
from t2x.layers import Causal, Input
from t2x.samples import DigitRows
from t2x.tasks import AttentionMaps, Captions, ImageClassification, ImageModality
from t2x.tasks.evaluators import Evaluated
from t2x.tasks.inspection import Inspection
from t2x.tasks.translation_scores import Translations
from t2x.train.experiment import row_lengths

TOKENIZER = CharacterTokenizer('eghinorstuvwxz f', 40)


def task(**settings):
  fields = {
    'source': DigitRows(longest=2, train_examples=30),
    'tokenizer': Bytes(),
    'modality': ImageModality(shape=(8, 16, 1)),
    'target_length': 12,
    'strategy': Greedy(),
  }
  return Captions(**fields | settings)


class Reads:
  """A model with these inputs."""

  def __init__(self, kinds, shape=(None, None, 1)):
    own = spec(kinds, patterns=[Causal()], vocab_size=512)
    inputs = dict(own.inputs)
    if 'image' in kinds.values():
      inputs['source'] = Input('image', shape, 'float32')
    self.spec = dataclasses.replace(own, inputs=inputs)


def test_digits_of_a_row_are_images_of_the_words_and_no_image_is_in_two_splits():
  source, digits = DigitRows(longest=3, train_examples=300), {}
  for split in source.splits():
    examples = source.load(split)
    lengths = {len(e['target'].split()) for e in examples}
    assert lengths == {1, 2, 3} and examples[0]['source'].shape == (8, 24, 1)
    images = set()
    for example in examples:
      words = example['target'].split()
      cells = np.split(example['source'], 3, axis=1)
      assert not any(cell.any() for cell in cells[len(words) :])
      images |= {cell.tobytes() for cell in cells[: len(words)]}
    digits[split] = images
  assert not (digits['train'] & digits['test'] or digits['train'] & digits['validation'])
  assert not digits['validation'] & digits['test']
  assert source.load('test')[5]['target'] == source.load('test')[5]['target']


def test_rows_are_normalised_images_and_padded_texts_with_eos():
  captions = task().bound(TOKENIZER)
  rows = captions.rows('train')
  row = captions.transform(train=False)(rows[0], np.random.default_rng(0))
  ids = TOKENIZER.encode(rows[0]['target'])
  assert row['target'].tolist() == [*ids, TOKENIZER.eos_id, *[TOKENIZER.pad_id] * (11 - len(ids))]
  assert row['target_segments'].sum() == len(ids) + 1
  np.testing.assert_allclose(row['source'], rows[0]['source'] / 127.5 - 1, atol=1e-6)
  shapes = {name: (array.shape, str(array.dtype)) for name, array in row.items()}
  assert shapes == {n: (s.shape[1:], str(s.dtype)) for n, s in captions.spec(1).items()}


def test_other_tokenizers_and_sources_are_other_rows():
  other = CharacterTokenizer('fghinorstuvwxz e', 40)
  prepared = [
    one.transform(train=True)
    for one in (
      task().bound(TOKENIZER),
      task().bound(other),
      task(modality=ImageModality(shape=(8, 16, 1), std=1.0)).bound(TOKENIZER),
    )
  ]
  assert len({fingerprint(one) for one in prepared}) == 3


def test_crops_are_drawn_in_training_only():
  captions = task(modality=ImageModality(shape=(8, 16, 1), crop_padding=3)).bound(TOKENIZER)
  row = captions.rows('train')[0]
  images = [
    captions.transform(train=train)(row, np.random.default_rng(seed))['source']
    for train, seed in ((False, 0), (False, 1), (True, 0), (True, 1))
  ]
  np.testing.assert_array_equal(images[0], images[1])
  assert (images[2] != images[0]).any() and (images[2] != images[3]).any()


def test_examples_that_do_not_fit_say_which_setting_to_change():
  row = {'source': np.zeros((8, 16, 1), np.uint8), 'target': 'seven seven'}
  prepare = functools.partial(
    task(target_length=8).bound(TOKENIZER).transform(train=True), rng=None
  )
  with pytest.raises(UserError, match='12 tokens, but Captions'):
    prepare(row)
  with pytest.raises(UserError, match=r'\(8, 8, 1\), but ImageModality.shape = \(8, 16, 1\)'):
    prepare({'source': np.zeros((8, 8, 1), np.uint8), 'target': 'one'})
  with pytest.raises(UserError, match='cannot be read: No such file'):
    task().check_prompt('nowhere.png')


def test_the_model_must_read_the_kind_and_the_shape_of_the_sources():
  image = {'source': 'image', 'target': 'ids'}
  task().check_model(Reads(image))
  with pytest.raises(
    UserError, match=r'takes source \(image\) and target \(ids\), but .* source \(ids\)'
  ):
    task().check_model(Reads({'source': 'ids', 'target': 'ids'}))
  with pytest.raises(UserError, match=r"'source' of shape \(8, 16, 1\), but .* \(any, any, 3\)"):
    task().check_model(Reads(image, (None, None, 3)))


def test_an_older_task_with_a_phrase_is_told_the_names_to_write():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Older(ImageClassification):
    inputs = 'images'

  older = Older(image_shape=(8, 8, 1), num_classes=2)
  with pytest.raises(UserError, match=r"Older.inputs = 'images': .* write \{'image': 'image'\}"):
    older.check_model(Reads({'image': 'image'}))


@pytest.fixture(scope='module')
def model():
  settings = ['d_model=16', 'num_layers=1', 'MLP.hidden_dim=16', 'TokenEmbedding.vocab_size=40']
  return (
    read_config(['configs/runs/caption_digits.gin'], settings)
    .build()
    .complete_model()(rngs=nnx.Rngs(0))
  )


def evaluated(captions, model):
  return Evaluated(
    task=captions,
    watched=lambda items: items,
    model=lambda: model,
    rows=captions.rows,
    evaluation=lambda *_: None,
    batch_size=2,
  )


def test_generation_reads_images_and_files_of_images_alike(model, tmp_path):
  from PIL import Image

  captions = task().bound(TOKENIZER)
  image = captions.rows('test')[0]['source']
  Image.fromarray(image[..., 0]).save(tmp_path / 'digits.png')
  path = str(tmp_path / 'digits.png')
  captions.check_prompt(path)
  settings = {'strategy': Greedy(), 'max_new_tokens': 4}
  first, second = captions.generate(model, [image, path], **settings)
  assert first == second and first[0]['tokens']
  ((other,),) = captions.generate(model, [255 - image], **settings)
  assert abs(other['score'] - first[0]['score']) > 1e-4


def test_captions_are_scored_as_translations_are(model):
  captions = task().bound(TOKENIZER)
  evaluator = Translations(split='test', num_examples=3, batch_size=2)
  evaluator.check(captions, model)
  result = evaluator(evaluated(captions, model))
  assert result.metrics['examples'] == 3 and set(result.samples[0]) == {'target', 'output'}


def test_logits_of_images_and_prefixes_are_those_of_the_model(model):
  images = np.random.default_rng(0).normal(size=(2, 8, 16, 1)).astype(np.float32)
  prefixes = np.array([[1, 5, 6], [1, 7, 8]], np.int32)
  logits, recorded = Inspection(model, TOKENIZER).outputs(images, prefixes, frozenset({'hidden'}))
  np.testing.assert_allclose(logits, model(jnp.asarray(images), jnp.asarray(prefixes)).x, atol=1e-5)
  assert {name.partition('.')[0] for name in recorded} == {'encoder', 'decoder'}
  texts, _ = Inspection(model, TOKENIZER).outputs(images)
  assert texts.shape[:2] == (2, 1)


def test_flops_count_the_patches_as_tokens_of_the_encoder(model):
  assert row_lengths(task().bound(TOKENIZER), model) == {'encoder': 8, 'decoder': 12}


def test_attention_maps_of_images_need_a_text_for_each(model):
  captions = task().bound(TOKENIZER)
  with pytest.raises(UserError, match='one text for each'):
    AttentionMaps(num_examples=2, targets=['one']).check(captions, model)
  with pytest.raises(UserError, match='no effect on a model of image'):
    AttentionMaps(texts=['one']).check(captions, model)
  maps = AttentionMaps(num_examples=2, targets=['one', 'two'], split='test')
  maps.check(captions, model)
  pictures = maps(evaluated(captions, model)).images
  assert set(pictures) == {'attention/layer_00', 'encoder/layer_00', 'cross/layer_00'}
