"""Sources that read a folder: LibreOffice's help and Fashion-MNIST."""

import gzip
import pickle
import sys

import numpy as np
import pytest

from t2x.samples import FashionMNIST, LibreOfficeHelp
from t2x.samples.libreoffice import paragraphs

PAGE = """<html><body><h1 id="hd_id1" dir="auto">{0}</h1>
<p id="par_id2" class="paragraph">Choose <span id="sw1" class="switchinline"><span hidden="true"
 id="MACtext1" class="MAC"><span class="emph">Preferences</span></span><span hidden="true"
 id="defaulttext1"><span class="emph">Tools - Options</span></span></span><span> - {0} &amp; more</span>.<br>Done</p>
<div class="x"><p id="par_id3">same</p><p id="par_id4" class="tip">{1}
   on two lines</p></div>
<p id="par_id5">first {0}</p><p id="par_id5">second {0}</p><p id="par_id6"></p>
<p>no id {0}</p><p id="bm_id7">bookmark</p></body></html>"""


@pytest.fixture
def help_folder(tmp_path):
  """300 pages in two languages."""
  for language, word in (('en-US', 'page'), ('de', 'Seite')):
    folder = tmp_path / 'help/usr/share/libreoffice/help' / language / 'text'
    for i in range(300):
      path = folder / f'part{i % 3}' / f'{i}.html'
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(PAGE.format(f'{word} {i}', f'{word} of all'), encoding='utf-8')
  (folder / 'only-german.html').write_text(PAGE, encoding='utf-8')
  return str(tmp_path / 'help')


def test_paragraphs_read_as_outside_macos():
  found = paragraphs(PAGE.format('page', 'tip'))
  assert found == {
    'hd_id1': 'page',
    'par_id2': 'Choose Tools - Options - page & more. Done',
    'par_id3': 'same',
    'par_id4': 'tip on two lines',
    'par_id6': '',
  }
  programs = (
    '<p id="par_id1">In <span class="switchinline"><span hidden="true" id="WRITERx">Writer</span>'
    '<span hidden="true" id="CALCx">Calc</span></span>: go</p>'
  )
  assert paragraphs(programs) == {'par_id1': 'In Writer: go'}


def test_help_is_aligned_distinct_and_split_by_file(help_folder):
  source = LibreOfficeHelp(folder=help_folder)
  splits = {split: list(source.load(split)) for split in source.splits()}
  names = {split: {e['name'] for e in examples} for split, examples in splits.items()}
  assert sum(map(len, names.values())) == 300
  assert min(map(len, names.values())) > 0
  train = splits['train']
  assert sum(e['source'] == 'page of all on two lines' for e in train) == 1
  for split in ('validation', 'test'):
    assert not {e['source'] for e in train} & {e['source'] for e in splits[split]}
    assert len(splits[split]) == 2 * len(names[split])
  assert len(train) == 2 * len(names['train']) + 1
  assert all(e['target'] == e['source'].replace('page', 'Seite') for e in train)
  assert 'tensorflow' not in sys.modules


def test_no_source_or_target_of_the_help_is_in_two_splits(help_folder, tmp_path):
  """Paragraphs of which only the source, or only the target, is repeated in other files."""
  for language, texts in (('en-US', ('one', 'two {}')), ('de', ('eins {}', 'zwei'))):
    for i in range(300):
      page = ''.join(f'<p id="par_id{n}">{text}</p>' for n, text in enumerate(texts))
      path = next(tmp_path.rglob(f'{language}/text/part{i % 3}/{i}.html'))
      path.write_text(path.read_text() + page.format(i))
  source = LibreOfficeHelp(folder=help_folder)
  splits = {split: list(source.load(split)) for split in source.splits()}
  for side in ('source', 'target'):
    texts = [text for part in splits.values() for text in {pair[side] for pair in part}]
    assert len(texts) == len(set(texts))
  assert all(map(len, splits.values()))


def test_help_is_fingerprinted_by_content(help_folder, tmp_path):
  source = LibreOfficeHelp(folder=help_folder)
  before = source.fingerprint()
  assert LibreOfficeHelp(folder=f'{help_folder}/../help').fingerprint() == before
  assert (
    len(
      {
        before,
        *(
          LibreOfficeHelp(folder=help_folder, source_language=a, target_language=b).fingerprint()
          for a, b in (('de', 'en-US'), ('de', 'de'))
        ),
      }
    )
    == 3
  )
  path = next(tmp_path.rglob('de/text/part0/0.html'))
  path.write_text(path.read_text().replace('Seite', 'Siete'))
  assert source.fingerprint() != before


def test_missing_help_files_are_an_error_that_states_how_to_get_them(
  help_folder, tmp_path, message
):
  assert 'run `t2x data fetch libreoffice_help`' in message(LibreOfficeHelp().load, 'train')
  absent = LibreOfficeHelp(folder=str(tmp_path / 'no'))
  assert f'libreoffice_help --out {tmp_path / "no"}`' in message(absent.load, 'train')
  french = LibreOfficeHelp(folder=help_folder, target_language='fr')
  assert "no help in 'fr'" in message(french.load, 'train')
  assert 'it has de, en-US' in message(french.load, 'train')


def idx(array):
  shape = b''.join(size.to_bytes(4, 'big') for size in array.shape)
  return b'\0\0\x08' + bytes([array.ndim]) + shape + array.astype(np.uint8).tobytes()


@pytest.fixture
def images_folder(tmp_path):
  folder = tmp_path / 'idx' / 'usr' / 'share'
  folder.mkdir(parents=True)
  for prefix, count in (('train', 7), ('t10k', 3)):
    images = np.arange(count * 28 * 28).reshape(count, 28, 28) % 251
    (folder / f'{prefix}-images-idx3-ubyte').write_bytes(idx(images))
    (folder / f'{prefix}-labels-idx1-ubyte.gz').write_bytes(gzip.compress(idx(np.arange(count))))
  return folder


def test_images_in_idx_files_gz_or_not(images_folder):
  source = FashionMNIST(folder=str(images_folder.parent))
  train = source.load('train')
  assert (len(train), len(source.load('test'))) == (7, 3)
  assert train[6]['label'] == 6
  assert type(train[6]['label']) is int
  assert train[6]['image'].shape == (28, 28, 1)
  assert train[6]['image'].dtype == np.uint8
  np.testing.assert_array_equal(train[0]['image'].ravel(), np.arange(784) % 251)
  np.testing.assert_array_equal(pickle.loads(pickle.dumps(train))[3]['image'], train[3]['image'])
  before = source.fingerprint()
  (images_folder / 'train-images-idx3-ubyte').write_bytes(idx(np.zeros((7, 28, 28))))
  assert source.fingerprint() != before


@pytest.mark.parametrize(
  ('name', 'content', 'told'),
  [
    ('train-images-idx3-ubyte', b'', 'not a complete IDX file'),
    ('train-images-idx3-ubyte', b'\0\0\x08\x03\0\0', 'not a complete IDX file'),
    ('train-images-idx3-ubyte', idx(np.zeros((7, 28, 28)))[:-1], 'not a complete IDX file'),
    ('train-images-idx3-ubyte', idx(np.zeros((6, 28, 28))), '6 images but 7 labels'),
    ('train-labels-idx1-ubyte.gz', b'\x1f\x8b torn', 'cannot be read'),
    ('train-labels-idx1-ubyte.gz', gzip.compress(bytes(999), mtime=0)[:20], 'cannot be read'),
  ],
)
def test_truncated_images_are_errors(images_folder, message, name, content, told):
  (images_folder / name).write_bytes(content)
  assert told in message(FashionMNIST(folder=str(images_folder)).load, 'train')


def test_missing_images_are_an_error_that_states_how_to_get_them(tmp_path, message):
  assert 'run `t2x data fetch fashion_mnist`' in message(FashionMNIST().load, 'train')
  absent = FashionMNIST(folder=str(tmp_path / 'no'))
  assert f'run `t2x data fetch fashion_mnist --out {tmp_path / "no"}`' in message(
    absent.load, 'train'
  )
  assert "no split 'validation'" in message(FashionMNIST().load, 'validation')
