"""Text, JSON lines and tab-separated files of one's own."""

import gc
import json
import pickle
import tracemalloc

import pytest

from t2x.data.sources import TSV, JsonLines, Source, TextFiles


@pytest.fixture
def write(tmp_path):
  def write(name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)

  return write


def test_a_text_file_is_an_example_and_a_glob_is_sorted(write, tmp_path):
  write('b.txt', 'bé\n')
  write('a.txt', '\ufeffa')
  write('deep/c.txt', 'c')
  source = TextFiles(train=str(tmp_path / '**/*.txt'))
  assert source.splits() == ('train',)
  assert list(source.load('train')) == [
    {'text': 'a', 'name': 'a.txt'},
    {'text': 'bé\n', 'name': 'b.txt'},
    {'text': 'c', 'name': 'c.txt'},
  ]


def test_lines_are_examples_and_blank_ones_are_not(write):
  source = TextFiles(train=write('a.txt', 'one\r\n\n  \ntwo\u2028still two\n'), per_line=True)
  assert [e['text'] for e in source.load('train')] == ['one', 'two\u2028still two']


def test_brackets_in_the_name_of_a_file_are_no_pattern(write):
  assert len(TextFiles(train=write('a[1].txt', 'x')).load('train')) == 1


def test_json_lines_as_they_are_and_under_our_names(write):
  line = {'en': 'a\u2028b', 'de': 'c', 'id': 3}
  path = write('a.jsonl', json.dumps(line, ensure_ascii=False) + '\n\n')
  source = JsonLines(train=path, fields={'source': 'en', 'target': 'de'})
  assert list(source.load('train')) == [{'source': 'a\u2028b', 'target': 'c'}]
  plain = JsonLines(train=write('b.jsonl', '{"text": "x", "name": "n"}'))
  assert list(plain.load('train')) == [{'text': 'x', 'name': 'n'}]


def test_tsv_columns_by_name(write):
  path = write('a.tsv', 'a\tb\r\n\nc d\t\n')
  assert list(TSV(train=path).load('train')) == [
    {'source': 'a', 'target': 'b'},
    {'source': 'c d', 'target': ''},
  ]
  source = TSV(train=path, columns=['text', 'name'])
  assert source.load('train')[0] == {'text': 'a', 'name': 'b'}
  assert source == TSV(train=path, columns=('text', 'name'))


def test_sources_are_values(write):
  path = write('a.jsonl', '{"text": "x"}')
  for source in (TextFiles(train=path), JsonLines(train=path), TSV(train=path)):
    assert isinstance(source, Source)
    assert pickle.loads(pickle.dumps(source)) == source
    assert hash(source) == hash(pickle.loads(pickle.dumps(source)))
  assert TextFiles(train='a', per_line=True).describe() == "TextFiles(train='a', per_line=True)"


def test_the_fingerprint_is_of_content_and_settings_not_of_the_place(write, tmp_path):
  first = TextFiles(train=write('1/a.txt', 'same'))
  assert first.fingerprint() == TextFiles(train=write('2/a.txt', 'same')).fingerprint()
  others = [
    TextFiles(train=write('3/a.txt', 'else')),
    TextFiles(train=write('4/b.txt', 'same')),
    TextFiles(train=first.train, per_line=True),
    TextFiles(train=first.train, test=first.train),
    JsonLines(train=first.train),
    JsonLines(train=first.train, fields={'text': 'x'}),
    TSV(train=first.train),
  ]
  assert len({source.fingerprint() for source in [first, *others]}) == 8


@pytest.mark.parametrize(
  ('content', 'told'),
  [
    ('{"text": "x"}\n{"text": \n', ':2: not JSON'),
    ('[1]\n', ':1: not a JSON object'),
    ('\n{"body": "x"}\n', ":2: needs text in the field 'text', but it has 'body'"),
    ('{"text": 3}\n', ":1: needs text in the field 'text', but it is not text"),
    ('{"source": "x"}\n', ":1: needs text in the field 'target'"),
    ('', 'is empty'),
    (b'\xff\xfe', 'is not UTF-8 text (byte 0)'),
  ],
)
def test_bad_json_lines_are_told_by_line(write, message, content, told):
  path = write('a.jsonl', content)
  said = message(JsonLines(train=path).load, 'train')
  assert said.startswith(path)
  assert told in said


def test_a_line_with_other_columns_is_told(write, message):
  said = message(TSV(train=write('a.tsv', 'a\tb\na\tb\tc\n')).load, 'train')
  assert 'a.tsv:2: 3 columns, but TSV.columns names 2 (source, target)' in said


def test_files_that_are_not_there_are_told(write, message, tmp_path, monkeypatch):
  write('a.txt', ' \n')
  assert 'matches no file' in message(TextFiles(train=f'{tmp_path}/no*.txt').load, 'train')
  assert 'is a folder' in message(TextFiles(train=str(tmp_path)).load, 'train')
  assert 'is empty' in message(TextFiles(train=f'{tmp_path}/a.txt').load, 'train')
  assert 'TextFiles.test is not set' in message(TextFiles(train='x').load, 'test')
  assert "no split 'fingerprint'" in message(TextFiles(train='x').load, 'fingerprint')

  def refuse(path, mode):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr('pathlib.Path.open', refuse)
  source = TextFiles(train=f'{tmp_path}/a.txt')
  assert 'cannot be read: Permission denied' in message(source.load, 'train')
  assert 'cannot be read: Permission denied' in message(source.fingerprint)


@pytest.mark.parametrize(
  'line', ['{"text": "a\\ud800"}', '{"words": ["\\udc00"], "labels": ["O"]}']
)
def test_half_of_a_surrogate_pair_is_told_with_its_line(write, message, line):
  source = JsonLines(train=write('a.jsonl', '{"text": "\\ud83d\\ude00"}\n' + line))
  assert 'a.jsonl:2: unpaired surrogate' in message(source.load, 'train')


def test_lines_that_are_nested_too_deep_are_told(write, message):
  source = JsonLines(train=write('a.jsonl', '[' * 100_000))
  assert 'a.jsonl:1: not JSON' in message(source.load, 'train')


def test_examples_are_read_from_their_files_when_they_are_used(write, tmp_path):
  write('a.jsonl', '\ufeff{"text": "é one"}\r\n\n{"text": "two"}')
  write('b.jsonl', '\n{"text": "three"}\n')
  examples = JsonLines(train=str(tmp_path / '*.jsonl')).load('train')
  texts = ['é one', 'two', 'three']
  assert [e['text'] for e in examples] == [e['text'] for e in examples[:]] == texts
  assert [examples[i]['text'] for i in (-1, 0, 1)] == ['three', 'é one', 'two']
  assert [e['text'] for e in pickle.loads(pickle.dumps(examples))] == texts
  for index in (3, -4):
    with pytest.raises(IndexError):
      examples[index]


def test_a_document_keeps_its_line_ends(write):
  text = 'one\r\n\ntwo\n'
  assert TextFiles(train=write('a.txt', text)).load('train')[0]['text'] == text


def peak(function):
  """Bytes that Python holds at most while a function runs, beyond those before."""
  gc.collect()
  tracemalloc.start()
  try:
    function()
    return tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize('kind', [JsonLines, TSV, TextFiles])
def test_memory_does_not_grow_with_the_text(kind, write):
  settings = {TSV: {'columns': ('text',)}, TextFiles: {'per_line': True}}.get(kind, {})

  def source(size):
    line = json.dumps({'text': 'x' * size})
    return kind(train=write(f'{size}.jsonl', f'{line}\n' * 200), **settings)

  small, large = source(100), source(50_000)
  assert len(list(large.load('train'))) == 200

  def read(source):
    source.fingerprint()
    for _ in source.load('train'):
      pass

  assert peak(lambda: read(large)) - peak(lambda: read(small)) < 1e6
