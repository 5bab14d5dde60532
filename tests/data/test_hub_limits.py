"""Other people's tokenizers that are damaged or would fill the memory are refused by the file's name."""

import json
import os

import hub_folders
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from t2x.base.errors import UserError
from t2x.data import load_hub_tokenizer, load_tokenizer
from t2x.data.tokenizers.hub_limits import check_limits, protobuf_field, sentencepiece_model


def tokenizer(**parts):
  made = Tokenizer(models.WordLevel({'a': 0, '<unk>': 1, '<s>': 2}, unk_token='<unk>'))
  made.pre_tokenizer = pre_tokenizers.Whitespace()
  for name, part in parts.items():
    setattr(made, name, part)
  return made


@pytest.fixture
def folder(tmp_path):
  """`folder(tokenizer)`: a model folder with its tokenizer.json."""

  def write(made, **config):
    (tmp_path / 'tokenizer.json').write_text(made.to_str())
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({'eos_token': '<s>'} | config))
    return tmp_path

  return write


def twice(count):
  """A template with as many special tokens, of three ids each."""
  names = [('<s>', 2), ('<unk>', 1)]
  return processors.TemplateProcessing(
    single='<s> ' * count + '$A', pair='$A $B', special_tokens=names
  )


TENFOLD = normalizers.Replace('a', 'a' * 10)
BOMBS = {
  'replacements': {'normalizer': normalizers.Sequence([TENFOLD] * 12)},
  'replacements in turn': {
    'normalizer': normalizers.Sequence(
      [normalizers.NFKC(), normalizers.Replace(' ', '\ufdfa')] * 8,
    )
  },
  'one replacement': {'normalizer': normalizers.Replace('a', 'b' * 10**6)},
  'a pattern that matches nothing': {
    'normalizer': normalizers.Sequence([normalizers.Replace(Regex('x*'), 'aa')] * 12)
  },
  'prefixes': {'normalizer': normalizers.Sequence([normalizers.Prepend('a' * 50)] * 12)},
  'decoders': {'decoder': decoders.Sequence([decoders.Replace('a', 'a' * 10)] * 12)},
  'a template': {'post_processor': twice(2000)},
  'templates': {'post_processor': processors.Sequence([twice(12)] * 12)},
}


@pytest.mark.parametrize('parts', BOMBS.values(), ids=BOMBS)
def test_a_tokenizer_that_multiplies_texts_is_refused(parts, folder):
  (name,) = parts
  with pytest.raises(UserError, match=f': its {name} makes a text up to .* times as long'):
    load_hub_tokenizer(folder(tokenizer(**parts)))


def test_normalizers_of_published_models_are_within_the_limits(folder):
  charsmap = normalizers.Precompiled(charsmap_of('nmt_nfkc'))
  albert = [normalizers.Replace('``', '"'), normalizers.NFKD(), normalizers.StripAccents()]
  albert += [normalizers.Lowercase(), charsmap, normalizers.Replace(Regex(' {2,}'), ' ')]
  known = [
    normalizers.Sequence(albert),
    normalizers.Sequence([normalizers.Prepend('\u2581'), normalizers.Replace(' ', '\u2581')]),
    normalizers.BertNormalizer(),
  ]
  for normalizer in known:
    check_limits(tokenizer(normalizer=normalizer), 'here')


def charsmap_of(rule):
  model = hub_folders._unigram(hub_folders.lines(), normalization_rule_name=rule)
  return protobuf_field(protobuf_field(model, 3)[0], 2)[0]


def test_an_id_beyond_all_vocabularies_is_refused(folder):
  path = folder(tokenizer()) / 'tokenizer.json'
  text = path.read_text()
  path.write_text(text.replace('"<s>":2', '"<s>":4000000000'))
  assert path.read_text() != text
  with pytest.raises(UserError, match='its vocabulary has the id 4000000000'):
    load_hub_tokenizer(path.parent)


def test_a_special_id_that_the_vocabulary_lacks_is_refused(folder):
  path = folder(tokenizer())
  (path / 'config.json').write_text(json.dumps({'pad_token_id': 10**9}))
  with pytest.raises(
    UserError, match='pad_id = 1000000000 is not in the vocabulary, which has the ids 0 to 2'
  ):
    load_hub_tokenizer(path)


def test_a_negative_special_id_means_none(folder):
  path = folder(tokenizer())
  (path / 'config.json').write_text(json.dumps({'pad_token_id': -1}))
  assert load_hub_tokenizer(path).pad_id == 2


def lengthy(number, contents):
  """A field of a protocol buffer, of up to 2**14 bytes."""
  return bytes([number << 3 | 2, len(contents) & 127 | 128, len(contents) >> 7]) + contents


def test_a_sentencepiece_model_that_multiplies_texts_is_refused(tmp_path):
  charsmap, path = bytes(4) + b'a\0' + b'b' * 2001 + b'\0', tmp_path / 'x.model'
  path.write_bytes(lengthy(3, lengthy(2, charsmap)))
  with pytest.raises(
    UserError, match='its normalisation replaces one character by 2,001 characters;'
  ):
    sentencepiece_model(path)
  path.write_bytes(lengthy(3, lengthy(2, charsmap[:500])))
  assert sentencepiece_model(path) == path.read_bytes()


@pytest.mark.parametrize(
  'damage', [b'', b'\xff' * 20, b'\x0f', b'\x12\x7f', b'\x1a\x03\x12\x7f\x00']
)
def test_a_damaged_sentencepiece_model_is_refused(damage, tmp_path):
  hub_folders.make(tmp_path / 'theirs', 't5')
  (tmp_path / 'theirs' / 'spiece.model').write_bytes(damage)
  with pytest.raises(UserError, match=r'spiece\.model'):
    load_hub_tokenizer(tmp_path / 'theirs')


SAID = [
  ('tokenizer.json', '[]', 'not a JSON object'),
  ('tokenizer.json', '{', 'is not valid JSON'),
  ('tokenizer.json', '{}', 'cannot be read as a tokenizer'),
  ('tokenizer.json', '[' * 100_000, 'too many nested brackets'),
  ('tokenizer.json', b'\xff', 'is not a UTF-8 text file'),
  ('tokenizer_config.json', '3', 'contains 3, not a JSON object'),
  ('tokenizer_config.json', '{"eos_token": 3}', 'eos_token = 3 is not supported'),
  ('tokenizer_config.json', '{"eos_token": {"content": []}}', "eos_token = {'content': []}"),
  ('tokenizer_config.json', '{"do_lower_case": "no"}', "do_lower_case = 'no'"),
  ('tokenizer_config.json', '{"extra_ids": 1000000000}', 'extra_ids = 1000000000'),
  ('special_tokens_map.json', '{"pad_token": ["a"]}', "pad_token = ['a']"),
  ('config.json', '{"eos_token_id": "a"}', "eos_token_id = 'a'"),
  ('generation_config.json', '{"bos_token_id": [1.5]}', 'bos_token_id = [1.5]'),
  ('generation_config.json', '"a"', "contains 'a', not a JSON object"),
]


@pytest.mark.parametrize(('file', 'contents', 'told'), SAID)
def test_a_file_of_another_kind_is_refused_with_its_name(file, contents, told, folder):
  path = folder(tokenizer())
  (path / file).write_bytes(contents if isinstance(contents, bytes) else contents.encode())
  with pytest.raises(UserError) as caught:
    load_hub_tokenizer(path)
  assert str(caught.value).startswith(f'{path / file}')
  assert told in str(caught.value)


@pytest.mark.parametrize(
  'vocab', ['[]', '{"a": "b"}', '{"a": -1}', '{"a": 1e3}', '{"a": 0, "b": 0}']
)
def test_a_vocabulary_of_another_kind_is_refused(vocab, tmp_path):
  for family in ('gpt2', 'marian'):
    path = hub_folders.make(tmp_path / family, family)
    (path / 'vocab.json').write_text(vocab)
    with pytest.raises(UserError, match=r'vocab\.json'):
      load_hub_tokenizer(path)


def test_pipes_and_very_large_files_are_refused_without_reading(folder):
  path = folder(tokenizer())
  (path / 'tokenizer.json').unlink()
  with (path / 'tokenizer.json').open('wb') as file:
    file.truncate(10**12)
  with pytest.raises(UserError, match=r'tokenizer\.json is larger than 268,435,456 bytes'):
    load_hub_tokenizer(path)
  (path / 'tokenizer.json').unlink()
  os.mkfifo(path / 'tokenizer.json')
  with pytest.raises(UserError, match=r'tokenizer\.json is not a regular file'):
    load_hub_tokenizer(path)


SAVED = [
  ('t5', {'added': {'a': 10**12}}),
  ('t5', {'added': []}),
  ('t5', {'fold': 3}),
  ('t5', {'known': {}}),
  ('albert', {'fold': {'lower': 'x', 'strip': True}}),
  ('marian', {'vocab': {'a': 10**12}}),
  ('bert', {'pad_id': 'x'}),
  ('bert', {'single': [['A']]}),
  ('bert', {'mask_id': 1.5}),
  ('bert', {'mask_id': 10**9}),
  ('bert', {'kind': 'none'}),
  ('bert', {'kind': []}),
]


@pytest.mark.parametrize(('family', 'change'), SAVED)
def test_a_damaged_tokenizer_of_a_run_folder_is_refused(family, change, tmp_path):
  load_hub_tokenizer(hub_folders.make(tmp_path / 'theirs', family)).save(tmp_path / 'run')
  file = tmp_path / 'run' / 'tokenizer.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | change))
  with pytest.raises(UserError, match=f'{tmp_path}/run'):
    load_tokenizer(tmp_path / 'run')


def test_a_bomb_in_a_run_folder_is_refused(tmp_path):
  load_hub_tokenizer(hub_folders.make(tmp_path / 'theirs', 'bert')).save(tmp_path / 'run')
  (tmp_path / 'run' / 'backend.json').write_text(tokenizer(**BOMBS['replacements']).to_str())
  with pytest.raises(UserError, match='its normalizer makes a text'):
    load_tokenizer(tmp_path / 'run')
