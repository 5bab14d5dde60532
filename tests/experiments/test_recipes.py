"""The recipes at published sizes make batches of data with the fields and splits of the published data sets."""

import io
from pathlib import Path

import datasets
import gpt2_tokenizer
import tensorflow_datasets as tfds
from PIL import Image

from t2x.experiments import read_experiment

RUNS = Path(__file__).parents[2] / 'configs' / 'runs'


# Their names are those of TFDS's builders, which TFDS registers when it looks for a data set.
with tfds.core.registered.skip_registration():

  class Imagenet2012(tfds.core.GeneratorBasedBuilder):
    """A hundred images of a few pixels, with the features of TFDS's builder."""

    VERSION = tfds.core.Version('5.1.0')

    def _info(self):
      features = {
        'image': tfds.features.Image(encoding_format='jpeg'),
        'label': tfds.features.ClassLabel(num_classes=1000),
        'file_name': tfds.features.Text(),
      }
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
      return {'train': self._generate_examples(100), 'validation': self._generate_examples(3)}

    def _generate_examples(self, count):
      for i in range(count):
        image = io.BytesIO()
        Image.new('RGB', (40, 30), (2 * i,) * 3).save(image, 'jpeg')
        image.seek(0)
        yield i, {'image': image, 'label': 9 * i, 'file_name': f'{i}.JPEG'}

  class Wmt14Translate(tfds.core.GeneratorBasedBuilder):
    """Pairs of German and English, with the features of TFDS's builder."""

    VERSION = tfds.core.Version('1.0.0')
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name='de-en')]

    def _info(self):
      features = tfds.features.Translation(languages=('de', 'en'))
      return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
      return {name: self._generate_examples() for name in ('train', 'validation', 'test')}

    def _generate_examples(self):
      for i in range(8):
        yield i, {'de': f'Haus {i}', 'en': f'house {i}'}


def batch(task, split):
  """The first two training rows of a split."""
  rows = task.rows(split)
  task.check_rows(split, rows)
  return task.batches(rows, batch_size=2, seed=0)[0]


def test_the_builders_above_have_the_features_that_tfds_states():
  folder = Path(tfds.__file__).parent / 'datasets' / 'imagenet2012'
  stated = (folder / 'imagenet2012_dataset_builder.py').read_text()
  for name in Imagenet2012(data_dir='/none').info.features:
    assert f"'{name}': tfds.features." in stated
  stated = (folder.parents[1] / 'translate' / 'wmt14.py').read_text()
  assert 'class Wmt14Translate(wmt.WmtTranslate)' in stated and '"de"' in stated
  for split in ('TRAIN', 'VALIDATION', 'TEST'):
    assert f'tfds.Split.{split}: [' in stated


def test_images_are_divided_and_cropped_as_the_recipe_states(tmp_path):
  Imagenet2012(data_dir=tmp_path, file_format='array_record').download_and_prepare()
  file = RUNS / 'imagenet_vit_s16_full.gin'
  experiment = read_experiment([file], [f"TFDS.data_dir='{tmp_path}'"])
  task = experiment.task
  sizes = {split: len(task.rows(split)) for split in ('train', 'validation', 'test')}
  assert sizes == {'train': 99, 'validation': 1, 'test': 3}
  images = batch(task, 'train')['image']
  assert images.shape == (2, 224, 224, 3)
  assert -1 <= images.min() <= images.max() <= 1


def test_pairs_are_english_to_german(tmp_path):
  Wmt14Translate(
    config='de-en', data_dir=tmp_path, file_format='array_record'
  ).download_and_prepare()
  file = RUNS / 'wmt14_en_de_full.gin'
  experiment = read_experiment([file], [f"TFDS.data_dir='{tmp_path}'", 'BPE.vocab_size=264'])
  task = experiment.task
  texts = [f'{word} {i}' for word in ('house', 'Haus') for i in range(8)]
  bound = task.bound(task.tokenizer.train(texts))
  rows = batch(bound, 'test')
  assert rows['source'].shape == rows['target'].shape == (2, 256)
  decoded = bound.fitted.decode(rows['source'][0])
  assert 'house' in decoded and 'Haus' not in decoded


def test_documents_become_rows_of_gpt_2s_tokens(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  gpt2_tokenizer.write(tmp_path / 'gpt2')
  # The other columns of FineWeb are not read.
  texts = [f'document {i} ' * 200 for i in range(3000)]
  rows = {'text': texts, 'id': list(map(str, range(3000))), 'language_score': [0.9] * 3000}
  datasets.DatasetDict(train=datasets.Dataset.from_dict(rows)).save_to_disk('fineweb')
  file = RUNS / 'fineweb_gpt2_full.gin'
  settings = ["HubDataset.name='./fineweb'", 'HubDataset.config=None']
  task = read_experiment([file], settings).task
  held_out = [example['text'] for example in task.source.load('validation')]
  assert 0 < len(held_out) < 30
  bound = task.bound(task.tokenizer.load())
  rows = batch(bound, 'validation')
  assert rows['tokens'].shape == (2, 1024)
  assert bound.fitted.decode(rows['tokens'][0]).count(' document ') > 10
