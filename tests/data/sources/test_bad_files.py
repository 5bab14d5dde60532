"""Bad files end with one line that names the file, and the row or the annotation; none is read in part."""

import io
import json
import os
import struct
import wave
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from t2x.data import CSV, ImageFolder, JsonLines, TextFiles
from t2x.domains.detection import CocoImages
from t2x.domains.segmentation import MaskFolder
from t2x.domains.series import SeriesFile
from t2x.domains.speech import read_recording

TIMES = [f'2020-01-01T{hour:02}:00' for hour in range(6)]


def series(cells, header='date,x', **settings):
  """A function that reads a series with these cells beside its times."""

  def read(folder):
    rows = [header, *(f'{time},{cell}' for time, cell in zip(TIMES, cells, strict=False))]
    (folder / 'a.csv').write_text('\n'.join(rows))
    settings_ = {'columns': ('x',), 'minutes': 60, 'rows': (2, 1, 1)} | settings
    return SeriesFile(path=str(folder / 'a.csv'), **settings_).load('train')

  return read


def timed(*times, **settings):
  def read(folder):
    (folder / 'a.csv').write_text('date,x\n' + ''.join(f'{time},1\n' for time in times))
    settings_ = {'columns': ('x',), 'minutes': 1, 'rows': (2, 1, 1)} | settings
    return SeriesFile(path=str(folder / 'a.csv'), **settings_).load('train')

  return read


def table(text):
  def read(folder):
    (folder / 'a.csv').write_text(text)
    return list(CSV(train=str(folder / 'a.csv')).load('train'))

  return read


def wav(change=lambda content: content, rate=16_000, channels=1, samples=100):
  """A function that reads a recording whose content is changed."""

  def read(folder):
    content = io.BytesIO()
    with wave.open(content, 'wb') as file:
      file.setparams((channels, 2, rate, samples, 'NONE', ''))
      file.writeframes(bytes(2 * channels * samples))
    (folder / 'a.wav').write_bytes(change(content.getvalue()))
    return read_recording(folder / 'a.wav')

  return read


def with_rate(rate):
  return lambda content: content[:24] + struct.pack('<I', rate) + content[28:]


def with_data_size(size):
  return lambda content: content[:40] + struct.pack('<I', size) + content[44:]


def png(size=(4, 4)):
  content = io.BytesIO()
  Image.new('L', size).save(content, 'png')
  return content.getvalue()


def bomb():
  """The header of an image of 10^10 pixels."""
  content = png()
  header = content[12:16] + struct.pack('>II', 100_000, 100_000) + content[24:29]
  return content[:12] + header + struct.pack('>I', zlib.crc32(header)) + content[33:]


def masks(content, name='a.png'):
  def read(folder):
    for kind in ('images', 'masks'):
      (folder / kind / 'train').mkdir(parents=True)
    (folder / 'images' / 'train' / 'a.png').write_bytes(png())
    (folder / 'masks' / 'train' / name).write_bytes(content)
    settings = {key: str(folder / key) for key in ('images', 'masks')}
    return list(MaskFolder(train='train', **settings).load('train'))

  return read


def coco(image=None, item=None, twice=False):
  """A function that reads a file with an image and an object, with these fields changed."""

  def read(folder):
    (folder / 'a.png').write_bytes(png())
    images = [{'id': 1, 'file_name': 'a.png', 'width': 40, 'height': 30} | (image or {})]
    items = [{'id': 7, 'image_id': 1, 'category_id': 2, 'bbox': [1, 2, 3, 4]} | (item or {})]
    data = {'images': images * (1 + twice), 'annotations': items}
    data['categories'] = [{'id': 2, 'name': 'cat'}]
    (folder / 'a.json').write_text(json.dumps(data))
    source = CocoImages(train=str(folder / 'a.json'), folders={'train': str(folder)})
    return list(source.load('train'))

  return read


def looped(folder):
  (folder / 'images' / 'cat').mkdir(parents=True)
  (folder / 'images' / 'cat' / 'a.png').write_bytes(png())
  (folder / 'images' / 'dog').symlink_to('dog')
  return list(ImageFolder(train=str(folder / 'images')).load('train'))


def pipe(read):
  """A function that reads a named pipe, which would wait for a writer."""

  def call(folder):
    os.mkfifo(folder / 'pipe')
    return read(folder / 'pipe')

  return call


def pipe_as_image(folder):
  (folder / 'images' / 'cat').mkdir(parents=True)
  os.mkfifo(folder / 'images' / 'cat' / 'a.png')
  return list(ImageFolder(train=str(folder / 'images')).load('train'))


def series_at(path):
  return SeriesFile(path=str(path), columns=('x',), minutes=60, rows=(2, 1, 1))


BAD = {
  # Time series.
  'series, row too short': (
    series(['1', '2', '3', '4'], 'date,x,y'),
    'a.csv:2: 2 columns, but the header has 3',
  ),
  'series, row too long': (series(['1', '2,3']), 'a.csv:3: 3 columns, but the header has 2'),
  'series, inf': (series(['1', 'inf']), "a.csv:3: the column 'x' has inf, which is no finite"),
  'series, 1e39': (series(['1', '-1e39']), "a.csv:3: the column 'x' has -1e39, which is no finite"),
  'series, text': (series(['1', 'two']), 'a.csv:3: could not convert string to float'),
  'series, empty column': (series([''] * 4), "a.csv: the column 'x' has no value"),
  'series, doubled column': (series(['1,2'], 'date,x,x'), "a.csv has several columns 'x'"),
  'series, no column': (series(['1'], 'date,y'), "a.csv has no column 'x'"),
  'series, column named twice': (
    series(['1'], columns=('x', 'x')),
    "SeriesFile.columns = ['x', 'x']: must name at least one column, each once",
  ),
  'series, no columns': (series(['1'], columns=()), 'SeriesFile.columns = []: must name'),
  'series, empty time': (timed('2020-01-01', ''), 'a.csv:3: Error parsing datetime string'),
  'series, too long': (
    timed('0001-01-01', '9999-01-01'),
    'intervals of 1 minutes, more than 268,435,456',
  ),
  'series, quote': (series(['1', '"2']), 'a.csv:3: not CSV (unexpected end of data)'),
  'series, pipe': (pipe(lambda p: series_at(p).load('train')), 'pipe is not a regular file'),
  'series, pipe, fingerprint': (
    pipe(lambda p: series_at(p).fingerprint()),
    'pipe is not a regular file',
  ),
  'series, device': (
    lambda _: series_at('/dev/zero').load('train'),
    '/dev/zero is not a regular file',
  ),
  # Texts.
  'CSV, column without a name': (
    table('text,\na,b\n'),
    'a.csv: column 2 of the header has no name: give it one',
  ),
  'CSV, doubled column': (table('text,text\na,b\n'), "a.csv: the header repeats 'text'"),
  'CSV, row too short': (
    table('text,label\na,1\nb\n'),
    'a.csv:3: 1 columns, but the header has 2',
  ),
  'text, pipe': (
    pipe(lambda p: TextFiles(train=str(p)).load('train')),
    "pipe' is not a regular file",
  ),
  'JSON, device': (
    lambda _: JsonLines(train='/dev/zero').load('train'),
    "JsonLines.train = '/dev/zero' is not a regular file",
  ),
  # Recordings.
  'WAV, cut off': (wav(lambda c: c[:-50]), 'a.wav ends after 75 of 100 samples: it was cut off'),
  'WAV, odd number of bytes': (wav(lambda c: c[:-1]), 'a.wav ends after 99 of 100 samples'),
  'WAV, stereo cut': (wav(lambda c: c[:-2], channels=2), 'a.wav ends after 99 of 100 samples'),
  'WAV, chunk too large': (wav(with_data_size(2**31)), 'a.wav ends after 100 of 1,073,741,824'),
  'WAV, rate 0': (wav(with_rate(0)), 'a.wav has 0 samples per second: must have 100 to 1,000,000'),
  'WAV, rate 2^32 - 5': (
    wav(with_rate(2**32 - 5)),
    'a.wav has 4,294,967,291 samples per second: must have 100 to 1,000,000',
  ),
  'WAV, header cut': (wav(lambda c: c[:30]), 'a.wav cannot be read'),
  'WAV, no WAV': (wav(lambda _: b'RIFF'), 'a.wav cannot be read'),
  'WAV, pipe': (pipe(read_recording), 'pipe is not a regular file'),
  'WAV, null character': (lambda _: read_recording(Path('a\0.wav')), 'null'),
  # Images.
  'mask, bomb': (masks(bomb()), 'a.png cannot be read: no image, or a damaged one (Image size'),
  'mask, other content': (masks(b'text'), 'a.png cannot be read: no image, or a damaged one'),
  'mask, cut off': (masks(png((64, 64))[:60]), 'a.png cannot be read: no image, or a damaged one'),
  'images, class that links to itself': (looped, 'dog cannot be read: Too many levels'),
  'images, pipe': (pipe_as_image, 'a.png is not a regular file'),
  # Detection.
  'COCO, bbox of 3 numbers': (
    coco(item={'bbox': [1, 2, 3]}),
    'a.json: annotation 7: its bbox is [1, 2, 3]',
  ),
  'COCO, bbox of 5 numbers': (
    coco(item={'bbox': [1] * 5}),
    'annotation 7: its bbox is [1, 1, 1, 1, 1], not',
  ),
  'COCO, negative side': (
    coco(item={'bbox': [5, 5, -2, 4]}),
    'annotation 7: its bbox is [5, 5, -2, 4]: sides',
  ),
  'COCO, not a number': (coco(item={'bbox': [1, 2, 3, 'x']}), 'annotation 7: its bbox is'),
  'COCO, NaN': (coco(item={'bbox': [1, 2, 3, float('nan')]}), 'annotation 7: its bbox is'),
  'COCO, infinite': (coco(item={'bbox': [1, 2, float('inf'), 3]}), 'annotation 7: its bbox is'),
  'COCO, right and bottom': (
    coco(item={'bbox': [20, 10, 39, 29]}),
    'annotation 7: its bbox [20, 10, 39, 29], [left, top, width, height], is not within its image of 40 x 30',
  ),
  'COCO, outside': (
    coco(item={'bbox': [-9, 1, 3, 4]}),
    'is not within its image of 40 x 30 pixels',
  ),
  'COCO, iscrowd': (coco(item={'iscrowd': 'no'}), "annotation 7: its iscrowd is 'no', not 0 or 1"),
  'COCO, unknown category': (coco(item={'category_id': 9}), 'a.json: annotation 7 lacks a field'),
  'COCO, category of another type': (coco(item={'category_id': [2]}), 'a.json: annotation 7 lacks'),
  'COCO, image twice': (coco(twice=True), 'a.json: image 1: another image has the same id'),
  **{
    f'COCO, file_name {name!r}': (
      coco(image={'file_name': name}),
      'a.json: image 1: its file_name is',
    )
    for name in (7, None, ['a.png'], 'a\0.png', 'a\udcff.png', '')
  },
}


@pytest.mark.parametrize('name', BAD)
def test_a_bad_file_is_refused_in_one_line(tmp_path, message, name):
  read, text = BAD[name]
  line = message(read, tmp_path)
  assert text in line, line


def test_boxes_may_exceed_their_image_by_a_pixel(tmp_path):
  [example] = coco(item={'bbox': [-0.4, 0, 40.9, 30.5], 'iscrowd': 1})(tmp_path)
  np.testing.assert_allclose(example['boxes'], [[-0.4, 0, 40.9, 30.5]])
  assert example['crowd'] == [True]


def test_a_series_with_missing_values_is_read(tmp_path):
  [example] = series(['1', '', 'NA', '4'])(tmp_path)
  np.testing.assert_array_equal(example['values'][:, 0], [1, np.nan])
