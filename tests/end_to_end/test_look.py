"""`t2x look` on runs: one page without external resources, pictures, and refusals in one line."""

import json
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image


def data_of(page):
  """The data of a page."""
  text = page.read_text('utf-8')
  assert not re.search(r'(src|href)="(?!data:)', text)
  return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


def test_a_text_gives_a_page_and_pictures(run, t2x, tmp_path):
  out = tmp_path / 'page.html'
  folders = '--png', tmp_path / 'png', '--svg', tmp_path / 'svg'
  code, stdout, err = t2x('look', run, '--prompt', 'a <b>', '--out', out, *folders)
  assert code == 0, err
  names = ('self_attention_layer_1', 'self_attention_layer_2', 'maps')
  pictures, drawings = ([tmp_path / k / f'{name}.{k}' for name in names] for k in ('png', 'svg'))
  assert stdout.split() == [str(path) for path in (out, *pictures, *drawings)]
  for path in drawings:
    assert ElementTree.parse(path).getroot().tag.endswith('svg')
  assert '<h1>Inside run, a causal language model</h1>' in out.read_text()
  assert all(Image.open(path).size[0] > 400 for path in pictures)
  data = data_of(out)
  (attention,) = data['attention']
  # The mean over heads comes before the two heads.
  assert [layer['shape'] for layer in attention['layers']] == [[3, 6, 6]] * 2
  assert ''.join(attention['keys'][1:]) == 'a <b>'
  assert len(data['losses']['losses']) == 5
  assert ['step', '3'] in data['facts']


def test_an_image_gives_a_page_with_the_picture(short_runs, t2x, tmp_path):
  out = tmp_path / 'page.html'
  code, _, err = t2x('look', short_runs('image_classification'), '--input', '0', '--out', out)
  assert code == 0, err
  assert ', a classifier of images</h1>' in out.read_text()
  data = data_of(out)
  assert data['pixels']['shape'] == [1, 8, 8]
  (attention,) = data['attention']
  assert attention['grid'][:2] == [4, 4]
  assert dict(data['facts'])['label'].isdigit()


def test_pages_without_out_are_in_the_run_and_replace_none(run, t2x, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ('look.html', 'look-2.html'):
    code, stdout, err = t2x('look', run, '--prompt', 'ab')
    assert (code, stdout) == (0, f'{run / name}\n'), err
  assert data_of(run / 'look.html') == data_of(run / 'look-2.html')
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('kind', ['png', 'svg'])
def test_pictures_without_matplotlib_are_refused_before_the_page(
  run, t2x, tmp_path, monkeypatch, kind
):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  out = tmp_path / 'page.html'
  code, stdout, err = t2x('look', run, '--prompt', 'ab', '--out', out, f'--{kind}', tmp_path / 'f')
  assert (code, stdout) == (2, '') and not list(tmp_path.iterdir())
  assert f"packages are not installed: matplotlib (--{kind}): pip install 't2x[report]'" in err


FOLDERS = """
include '{config}'
HeldOut.source = @Resized()
ImageClassification.eval_split = 'test'
Resized:
  source = @ImageFolder()
  height = 8
  width = 8
ImageFolder:
  train = '{folder}'
  test = '{folder}'
  channels = 1
Trainer.num_steps = 3
Trainer.batch_size = 4
"""


def test_an_image_is_resized_as_the_source_does_and_classes_have_names(
  write_experiment, t2x, tmp_path
):
  rng = np.random.default_rng(0)
  folder = tmp_path / 'images'
  for number in range(10):
    (folder / f'class {number}').mkdir(parents=True)
    image = Image.fromarray(rng.integers(0, 256, (20, 12), np.uint8))
    image.save(folder / f'class {number}' / 'x.png')
  config = write_experiment(tmp_path, 'image_classification', '')
  folders = tmp_path / 'folders.gin'
  folders.write_text(FOLDERS.format(config=config, folder=folder))
  run, pages = tmp_path / 'run', [tmp_path / 'index.html', tmp_path / 'file.html']
  assert t2x('train', folders, '--out', run)[0] == 0
  inputs = 3, folder / 'class 3' / 'x.png'
  for value, page in zip(inputs, pages, strict=True):
    code, _, err = t2x('look', run, '--input', value, '--out', page)
    assert code == 0, err
  index, file = map(data_of, pages)
  assert index['pixels'] == file['pixels']
  assert dict(index['facts'])['label'] == 'class 3'
  assert re.search(r'"class \d"', json.dumps(file['lens']))


def test_bad_requests_are_refused_in_one_line(run, short_runs, t2x, tmp_path):
  image = tmp_path / 'large.png'
  Image.fromarray(np.zeros((9, 9), np.uint8)).save(image)
  images = short_runs('image_classification')
  for folder, arguments, message in (
    (run, ('--prompt', 'a' * 40, '--max-tokens', 20), 'more than the maximum of 20: shorten it'),
    (run, ('--input', tmp_path / 'none.txt'), 'cannot be read'),
    (run, ('--prompt', ''), 'the text is empty: give one with --prompt or --input'),
    (run, ('--input', ''), '. is not a regular file'),
    (run, ('--prompt', 'a', '--target', 'b'), '--target has no effect'),
    (run, ('--prompt', 'a', '--rows', 2), '--rows has no effect'),
    (images, ('--prompt', 'a'), '--input FILE_OR_INDEX'),
    (images, ('--input', image), 'the image is (9, 9, 1), but the model reads (8, 8, 1)'),
    (images, ('--input', 100000), 'examples, from 0'),
  ):
    out = tmp_path / 'page.html'
    code, stdout, err = t2x('look', folder, *arguments, '--out', out)
    assert (code, stdout, err.count('\n'), out.exists()) == (2, '', 1, False), err
    assert message in err
  code, _, err = t2x('look', run)
  assert code == 2
  assert 'one of the arguments --prompt --input is required' in err
