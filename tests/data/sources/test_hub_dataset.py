"""Data sets of the package `datasets`, in folders."""

import io
import json
import pickle
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from t2x.data import HeldOut, HubDataset, files_of, label_values
from t2x.data.sources.base import class_names
from t2x.experiments import read_config

FOLDER = Path(__file__).parent
RUNS = FOLDER.parents[2] / 'configs' / 'runs'


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
  """No network, and a cache folder of the test's own."""
  monkeypatch.setattr('datasets.config.HF_DATASETS_CACHE', tmp_path / 'hub')
  monkeypatch.setattr('datasets.config.HF_HUB_OFFLINE', True)


@pytest.fixture
def texts(tmp_path):
  """Two splits of texts with class labels, saved."""
  features = datasets.Features(
    {'sentence': datasets.Value('string'), 'label': datasets.ClassLabel(names=['no', 'yes'])}
  )
  splits = {
    name: datasets.Dataset.from_dict(
      {'sentence': [f'{name} {i}' for i in range(count)], 'label': [i % 2 for i in range(count)]},
      features=features,
    )
    for name, count in (('train', 10), ('dev', 3))
  }
  folder = tmp_path / 'texts'
  datasets.DatasetDict(splits).save_to_disk(folder)
  return folder


RENAMED = {'text': 'sentence', 'label': 'label'}


def test_saved_splits_with_renamed_columns(texts):
  source = HubDataset(name=str(texts), fields=RENAMED)
  assert source.splits() == ('train', 'dev')
  examples = source.load('train')
  assert list(examples) == [{'text': f'train {i}', 'label': i % 2} for i in range(10)]
  assert label_values(examples) == {0, 1}
  assert class_names(HeldOut(source=source, test=0.5)) == ('no', 'yes')
  copy = pickle.loads(pickle.dumps(examples))
  assert [e['text'] for e in copy[2:5]] == ['train 2', 'train 3', 'train 4']
  assert [copy[i]['text'] for i in (-1, 0)] == ['train 9', 'train 0']
  assert copy[4:4] == []
  ours = HubDataset(name=str(texts), fields=RENAMED, split_names={'validation': 'dev'})
  assert ours.splits() == ('validation',)
  assert [e['text'] for e in ours.load('validation')] == ['dev 0', 'dev 1', 'dev 2']


def test_one_saved_data_set_is_train(tmp_path):
  datasets.Dataset.from_dict({'text': ['a']}).save_to_disk(tmp_path / 'one')
  source = HubDataset(name=str(tmp_path / 'one'))
  assert class_names(source) == ()
  assert source.splits() == ('train',)
  assert list(source.load('train')) == [{'text': 'a'}]


def test_folders_of_parquet_files(tmp_path):
  folder = tmp_path / 'files'
  folder.mkdir()
  datasets.Dataset.from_dict({'text': ['a', 'b']}).to_parquet(folder / 'train-0.parquet')
  datasets.Dataset.from_dict({'text': ['c']}).to_parquet(folder / 'test-0.parquet')
  source = HubDataset(name=str(folder))
  assert {split: [e['text'] for e in source.load(split)] for split in source.splits()} == {
    'train': ['a', 'b'],
    'test': ['c'],
  }


def test_labels_of_words_are_names(tmp_path):
  labels = datasets.List(datasets.ClassLabel(names=['O', 'B']))
  features = datasets.Features({'words': datasets.List(datasets.Value('string')), 'tags': labels})
  data = datasets.Dataset.from_dict({'words': [['a', 'b']], 'tags': [[1, 0]]}, features=features)
  data.save_to_disk(tmp_path / 'words')
  source = HubDataset(name=str(tmp_path / 'words'), fields={'words': 'words', 'labels': 'tags'})
  assert list(source.load('train')) == [{'words': ['a', 'b'], 'labels': ['B', 'O']}]


def test_images_are_decoded_when_they_are_read(tmp_path, message):
  pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
  buffer = io.BytesIO()
  Image.fromarray(pixels).save(buffer, 'png')
  rows = [{'bytes': buffer.getvalue(), 'path': None}, {'bytes': b'no image', 'path': None}]
  features = datasets.Features({'img': datasets.Image(), 'label': datasets.Value('int64')})
  data = datasets.Dataset.from_dict({'img': rows, 'label': [7, 8]}, features=features)
  data.save_to_disk(tmp_path / 'images')
  settings = {'name': str(tmp_path / 'images'), 'fields': {'image': 'img', 'label': 'label'}}
  examples = HubDataset(**settings, channels=3).load('train')
  np.testing.assert_array_equal(examples[0]['image'], pixels)
  assert examples[0]['label'] == 7
  assert HubDataset(**settings, channels=1).load('train')[0]['image'].shape == (4, 6, 1)
  assert 'split train, row 1: no image, or a damaged one' in message(lambda: examples[1])
  assert 'set HubDataset.channels to 3 or 1' in message(HubDataset(**settings).load, 'train')


def test_the_fingerprint_is_of_content_and_settings(texts, tmp_path):
  source = HubDataset(name=str(texts))
  copy = tmp_path / 'copy'
  datasets.load_from_disk(texts).save_to_disk(copy)
  assert HubDataset(name=str(copy)).fingerprint() == source.fingerprint()
  other = datasets.load_from_disk(texts)
  other['dev'] = other['dev'].select([0, 2])
  other.save_to_disk(tmp_path / 'other')
  others = [
    HubDataset(name=str(tmp_path / 'other')),
    HubDataset(name=str(texts), fields=RENAMED),
    HubDataset(name=str(texts), split_names={'train': 'train'}),
  ]
  assert len({s.fingerprint() for s in (source, *others)}) == 4
  assert sorted(path.suffix for path in files_of(source)) == ['.arrow', '.arrow']


def test_unsuitable_data_sets_are_errors(texts, tmp_path, message):
  name = str(texts)
  assert "names the column 'txt', but" in message(
    HubDataset(name=name, fields={'text': 'txt'}).load, 'train'
  )
  assert "needs text in the field 'text'" in message(HubDataset(name=name).load, 'train')
  assert "no split 'test'" in message(HubDataset(name=name).load, 'test')
  bad = HubDataset(name=name, split_names={'test': 'eval'})
  assert "HubDataset.split_names['test'] = 'eval'" in message(bad.load, 'test')
  assert 'has no images: remove' in message(
    HubDataset(name=name, fields=RENAMED, channels=3).load, 'train'
  )
  assert 'the saved data set' in message(HubDataset(name=name, config='x').load, 'train')
  assert 'is not a folder' in message(HubDataset(name=str(tmp_path / 'no')).load, 'train')
  (tmp_path / 'empty').mkdir()
  assert 'HubDataset.name = ' in message(HubDataset(name=str(tmp_path / 'empty')).load, 'train')
  [path] = (texts / 'train').glob('*.arrow')
  path.write_bytes(path.read_bytes()[:100])
  torn = tmp_path / 'torn'
  texts.rename(torn)
  assert 'HubDataset.name = ' in message(HubDataset(name=str(torn)).load, 'train')


def test_a_name_without_network_is_an_error(message):
  source = HubDataset(name='nobody/nothing-like-this')
  assert "HubDataset.name = 'nobody/nothing-like-this'" in message(source.splits)


@pytest.mark.parametrize('name', ['coco_captions', 'coco_clip_full'])
def test_captions_have_an_image_of_one_size_a_text_and_references(name, tmp_path):
  """With the features of a data set of captions, written by hand."""
  features = datasets.Features.from_dict(json.loads((FOLDER / 'coco_captions.json').read_text()))
  images = [Image.fromarray(np.full((h, 12, 3), h, np.uint8)) for h in (8, 20)]
  texts = ['a cat', 'a dog']
  row = {'image': images, 'image_id': [1, 2], 'text': texts, 'split': ['train'] * 2}
  row |= {'captions': [[text, f'{text} here'] for text in texts]}
  data = datasets.Dataset.from_dict(row, features=features)
  datasets.DatasetDict({'train': data, 'validation': data}).save_to_disk(tmp_path / 'coco')
  settings = [f"HubDataset.name='{tmp_path / 'coco'}'", 'Resized.height=8', 'Resized.width=8']
  config = read_config([RUNS / f'{name}.gin'], settings)
  source = config.build().task.source
  example = source.load('train')[1]
  assert example['source'].shape == (8, 8, 3) and example['source'].min() == 20
  references = ['a dog', 'a dog here'] if name == 'coco_captions' else None
  assert (example['target'], example.get('captions')) == ('a dog', references)
