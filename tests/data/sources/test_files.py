"""Text, JSON lines and tab-separated files of one's own."""

import gc
import gzip
import json
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from t2x.data import CSV, TSV, JsonLines, Source, TextFiles


@pytest.fixture
def write(tmp_path):
  def write(name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)

  return write


def read(source):
  return list(source.load('train'))


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


def test_lines_are_examples_and_blank_lines_are_not(write):
  source = TextFiles(train=write('a.txt', 'one\r\n\n  \ntwo\u2028still two\n'), per_line=True)
  assert [e['text'] for e in source.load('train')] == ['one', 'two\u2028still two']


@pytest.mark.parametrize('separator', ['\n\n', '<|endoftext|>', 'é', '\n'])
@pytest.mark.parametrize('between', ['', '\n', ' '])
def test_texts_between_separators_are_examples(write, separator, between):
  texts = ['one', ' ', '', 'two\nlines', 'three é', 'x' * 3_000_000, '\n']
  content = f'{between}{separator}{between}'.join(texts)
  source = TextFiles(train=write('a.txt', '\ufeff' + content), separator=separator)
  expected = [text for text in content.split(separator) if text.strip()]
  assert [e['text'] for e in source.load('train')] == expected
  assert source.load('train')[-1]['text'] == expected[-1]


def test_a_separator_belongs_to_the_settings_of_the_source(write, message):
  path = write('a.txt', 'one--two--three')
  sources = [TextFiles(train=path, separator=text) for text in ('--', 'o', 'w')]
  sources += [TextFiles(train=path), TextFiles(train=path, per_line=True)]
  assert len({source.fingerprint() for source in sources}) == 5
  assert [len(read(source)) for source in sources] == [3, 2, 2, 1, 1]
  assert 'TextFiles.separator has no effect' in message(
    lambda: TextFiles(train=path, per_line=True, separator='--')
  )
  examples = sources[0].load('train')
  write('a.txt', 'one==two==three')
  assert f'{path} was changed while it was read' in message(lambda: examples[1])


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
def test_invalid_json_is_an_error_with_its_line(write, message, content, told):
  path = write('a.jsonl', content)
  said = message(read, JsonLines(train=path))
  assert said.startswith(path)
  assert told in said


def test_a_line_with_other_columns_is_an_error(write, message):
  said = message(read, TSV(train=write('a.tsv', 'a\tb\na\tb\tc\n')))
  assert 'a.tsv:2: 3 columns, but TSV.columns names 2 (source, target)' in said


def test_missing_files_are_errors(write, message, tmp_path, monkeypatch):
  write('a.txt', ' \n')
  assert 'matches no file' in message(TextFiles(train=f'{tmp_path}/no*.txt').load, 'train')
  assert 'is a folder' in message(TextFiles(train=str(tmp_path)).load, 'train')
  assert 'is empty' in message(TextFiles(train=f'{tmp_path}/a.txt').load, 'train')
  assert 'TextFiles.test is not set' in message(TextFiles(train='x').load, 'test')
  assert "no split 'fingerprint'" in message(TextFiles(train='x').load, 'fingerprint')

  usual = Path.open

  def refuse(path, mode):
    if path.suffix == '.txt':
      raise PermissionError(13, 'Permission denied')
    return usual(path, mode)

  monkeypatch.setattr('pathlib.Path.open', refuse)
  source = TextFiles(train=f'{tmp_path}/a.txt')
  assert 'cannot be read: Permission denied' in message(source.load, 'train')
  assert 'cannot be read: Permission denied' in message(source.fingerprint)


@pytest.mark.parametrize(
  'line', ['{"text": "a\\ud800"}', '{"words": ["\\udc00"], "labels": ["O"]}']
)
def test_half_of_a_surrogate_pair_is_an_error_with_its_line(write, message, line):
  source = JsonLines(train=write('a.jsonl', '{"text": "\\ud83d\\ude00"}\n' + line))
  assert 'a.jsonl:2: unpaired surrogate' in message(read, source)


def test_too_deeply_nested_json_is_an_error(write, message):
  source = JsonLines(train=write('a.jsonl', '[' * 100_000))
  assert 'a.jsonl:1: not JSON' in message(source.load, 'train')  # The first line: at once.


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


def test_blank_lines_of_any_white_space_are_no_examples(write):
  lines = ['a', '\u00a0\u3000', ' \x1c\u2028 ', '\u3042', '  \u3042 ', '\x85', 'b ', '']
  source = TextFiles(train=write('a.txt', '\n'.join(lines)), per_line=True)
  assert [e['text'] for e in source.load('train')] == [line for line in lines if line.strip()]


def test_lines_across_blocks_are_read(write, monkeypatch):
  monkeypatch.setattr('t2x.data.sources.file_examples.BLOCK', 7)
  lines = ['x' * (i * 37 % 40) + f' {i}' for i in range(100)]
  content = '\ufeff' + '\n \n'.join(lines)
  source = TextFiles(train=write('a.txt', content), per_line=True)
  assert [e['text'] for e in source.load('train')] == lines


def test_slices_from_any_index_in_any_process(write, tmp_path):
  for name in 'ab':
    write(f'{name}.jsonl', ''.join(f'{{"text": "{name}{i}"}}\n\n' for i in range(50)))
  examples = JsonLines(train=str(tmp_path / '*.jsonl')).load('train')
  texts = [f'{name}{i}' for name in 'ab' for i in range(50)]
  copy = pickle.loads(pickle.dumps(examples))
  assert [e['text'] for e in copy[40:60]] == texts[40:60]
  assert [e['text'] for e in copy[90:10:-7]] == texts[90:10:-7]
  assert [copy[i]['text'] for i in (99, 0, 50, -50)] == ['b49', 'a0', 'b0', 'b0']


def test_the_pickle_of_examples_does_not_grow_with_them(write):
  source = TextFiles(train=write('a.txt', 'x\n' * 10_000), per_line=True)
  examples = source.load('train')
  assert len(list(examples)) == 10_000
  assert len(pickle.dumps(examples)) < 1000


def test_the_index_is_written_once_and_again_for_other_content(write, cache):
  path = write('a.txt', 'one\ntwo\n')
  source = TextFiles(train=path, per_line=True)
  read(source)
  index = [p for p in (cache / 'index').iterdir() if p.is_dir()]
  read(source)
  assert [p for p in (cache / 'index').iterdir() if p.is_dir()] == index
  write('a.txt', 'one\ntwo\nthree\n')
  assert len(read(source)) == 3
  # Files of one layout share the index; documents have another.
  assert len(read(TSV(train=path, columns=['text']))) == 3
  assert len([p for p in (cache / 'index').iterdir() if p.is_dir()]) == 2
  assert len(read(TextFiles(train=path))) == 1


def test_a_file_that_changes_during_use_is_an_error(write, message):
  path = write('a.txt', 'one\ntwo\nthree\n')
  examples = TextFiles(train=path, per_line=True).load('train')
  write('a.txt', 'four\nfive\nsix\n')
  assert f'{path} was changed while it was read' in message(lambda: examples[1])
  write('a.txt', 'one\n')
  assert f'{path} was changed while it was read' in message(lambda: examples[2])


def test_a_damaged_index_is_an_error(write, cache, message):
  source = TextFiles(train=write('a.txt', 'one\ntwo\n'), per_line=True)
  read(source)
  [file] = cache.glob('index/*/starts.bin')
  file.write_bytes(b'')
  assert 'is damaged' in message(source.load, 'train')


COMPRESS = {'gz': gzip.compress, 'zst': lambda data: zstandard.ZstdCompressor().compress(data)}


@pytest.mark.parametrize('kind', COMPRESS)
def test_compressed_files_are_read_as_others(write, cache, kind, message):
  text = ''.join(f'{{"text": "line {i}"}}\n' for i in range(1000)).encode()
  # Two members, as parallel compressors write them.
  data = COMPRESS[kind](text[:5000]) + COMPRESS[kind](text[5000:])
  source = JsonLines(train=write(f'a.jsonl.{kind}', data))
  assert [e['text'] for e in source.load('train')] == [f'line {i}' for i in range(1000)]
  [copy] = cache.glob('decompressed/*/a.jsonl')
  assert copy.read_bytes() == text
  bad = JsonLines(train=write(f'bad.jsonl.{kind}', COMPRESS[kind](text + b'{"text": 3}\n')))
  assert message(read, bad).startswith(f'{bad.train}:1001: needs text')
  for name, content in (('torn', data[:-20]), ('other', b'no compressed data')):
    said = message(JsonLines(train=write(f'{name}.{kind}', content)).load, 'train')
    assert f'{name}.{kind} is damaged' in said


@pytest.mark.parametrize('name', ['a.parquet', 'a.jsonl.bz2', 'a.zip'])
def test_files_that_are_not_text_are_errors_with_their_names(write, message, name):
  assert f'{name} is not a text file: ' in message(JsonLines(train=write(name, 'x')).load, 'train')


def test_csv_with_quotes_line_ends_and_other_delimiters(write):
  content = '\ufeffid,text,name\r\n1,"a, ""b""\nc",x\r\n\r\n2,5" pipe,é\r\n3,"",\n'
  rows = [
    {'id': '1', 'text': 'a, "b"\nc', 'name': 'x'},
    {'id': '2', 'text': '5" pipe', 'name': 'é'},
    {'id': '3', 'text': '', 'name': ''},
  ]
  examples = CSV(train=write('a.csv', content)).load('train')
  assert list(examples) == rows
  assert [examples[i] for i in (2, 0, 1)] == [rows[2], rows[0], rows[1]]
  renamed = CSV(
    train=write('b.csv', content.replace(',', ';')), delimiter=';', fields={'text': 'name'}
  )
  assert [e['text'] for e in renamed.load('train')] == ['x', 'é', '']


def test_csv_values_may_be_long(write):
  text = 'x' * 300_000
  assert read(CSV(train=write('a.csv', f'text,id\n"{text}",1\n'))) == [{'text': text, 'id': '1'}]


@pytest.mark.parametrize(
  ('content', 'told'),
  [
    ('text,id\na,1\nb\n', ':3: 1 columns, but the header has 2'),
    ('body,id\na,1\n', ":2: needs text in the field 'text', but it has 'body', 'id'; CSV.fields"),
    ('text,id\n"a,1\nb,2\n', ':2: not CSV (unexpected end of data)'),
    ('text,text\na,b\n', "the header repeats 'text'"),
    ('text,id\n', 'is empty'),
    (b'text\n\xff\n', 'is not UTF-8 text (byte 5)'),
  ],
)
def test_invalid_csv_is_an_error_with_its_line(write, message, content, told):
  path = write('a.csv', content)
  said = message(read, CSV(train=path))
  assert said.startswith(path)
  assert told in said


def test_a_delimiter_is_one_character(message):
  assert "CSV.delimiter = ', '" in message(CSV, train='a', delimiter=', ')


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

  def use(source):
    source.fingerprint()
    for _ in source.load('train'):
      pass

  assert peak(lambda: use(large)) - peak(lambda: use(small)) < 5e6


LONG_CELL = """
import pickle, sys
examples = pickle.load(sys.stdin.buffer)
print(len(examples[0]['text']), len(examples.source.load('train')[1]['text']))
"""


def test_a_csv_cell_of_any_length_is_read_by_processes_that_find_the_index(write):
  path = write('a.csv', 'text\n' + 'x' * 200_000 + '\n"' + 'y\n' * 100_000 + '"\n')
  examples = CSV(train=path).load('train')
  done = subprocess.run(
    [sys.executable, '-c', LONG_CELL],
    input=pickle.dumps(examples),
    capture_output=True,
    check=False,
  )
  assert done.stdout.split() == [b'200000', b'200000'], done.stderr.decode()
