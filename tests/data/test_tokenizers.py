"""Tokenizers lose nothing and are the same wherever they are trained."""

import importlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import BPE, Bytes, Characters, SentencePiece, WordPiece, load_tokenizer, tokenizers
from t2x.data.tokenizers.base import Tokenizer
from t2x.data.tokenizers.existing import CLASSES, class_of
from t2x.data.tokenizers.sentencepiece import num_threads
from t2x.data.tokenizers.text_sample import sample


@pytest.fixture(scope='module')
def fitted(library):
  configs = {
    'bpe': SentencePiece(800),
    'byte-level': BPE(800),
    'unigram': SentencePiece(600, 'unigram', sample_megabytes=0.03),
    'bytes': Bytes(),
    'characters': Characters(200),
  }
  return {name: (config, config.train(library)) for name, config in configs.items()}


@pytest.fixture(params=['bpe', 'byte-level', 'unigram', 'bytes', 'characters'])
def config_and_tokenizer(request, fitted):
  return fitted[request.param]


def test_the_size_matches_the_config(config_and_tokenizer):
  config, tokenizer = config_and_tokenizer
  assert tokenizer.vocab_size == config.vocab_size
  assert len(tokenizer.pieces(range(tokenizer.vocab_size))) == config.vocab_size


def test_special_ids_are_the_same_for_all(config_and_tokenizer):
  for one in (config_and_tokenizer[0].ids, config_and_tokenizer[1]):
    assert (one.pad_id, one.eos_id, one.unk_id, one.bos_id, one.mask_id) == (0, 1, 2, 3, 4)
  pieces = config_and_tokenizer[1].pieces(range(5))
  assert pieces == ['<pad>', '<eos>', '<unk>', '<bos>', '<mask>']


def test_code_is_decoded_unchanged(config_and_tokenizer, library):
  _, tokenizer = config_and_tokenizer
  for text in library:
    assert tokenizer.decode(tokenizer.encode(text)) == text
  assert tokenizer.encode_batch(library) == [tokenizer.encode(text) for text in library]


def test_workers_can_limit_the_threads(monkeypatch):
  monkeypatch.setattr('os.cpu_count', lambda: 7)
  for value, threads in ((None, 7), ('3', 3), ('0', 7), ('many', 7)):
    if value is None:
      monkeypatch.delenv('RAYON_NUM_THREADS', raising=False)
    else:
      monkeypatch.setenv('RAYON_NUM_THREADS', value)
    assert num_threads() == threads


AWKWARD = '\t\n\r  \u2581\u2585\u2047\0\x05 ab<mask><pad><0x0A>\u00e9\u4e2d\U0001f600'


LOSSLESS = ['bpe', 'byte-level', 'unigram', 'bytes']


@pytest.mark.parametrize('name', LOSSLESS)
@settings(max_examples=150)
@given(text=st.text() | st.text(alphabet=AWKWARD))
def test_any_text_is_decoded_unchanged(fitted, name, text):
  _, tokenizer = fitted[name]
  ids = tokenizer.encode(text)
  assert tokenizer.decode(ids) == text
  assert all(5 <= i < tokenizer.vocab_size for i in ids)


@settings(max_examples=100)
@given(text=st.text() | st.text(alphabet=AWKWARD))
@pytest.mark.parametrize('name', [*LOSSLESS, 'characters'])
def test_spans_omit_only_white_space(fitted, name, text):
  found = fitted[name][1].locate(text)
  assert found.ids.tolist() == fitted[name][1].encode(text)
  starts, stops = found.spans.T
  assert (np.diff(starts) >= 0).all() and (starts <= stops).all()
  assert all(text[a:b] == text[a:b].strip() for a, b in found.spans)
  covered = {i for a, b in found.spans.tolist() for i in range(a, b)}
  assert [i for i in range(len(text)) if i not in covered and not text[i].isspace()] == []


def test_texts_are_enclosed_in_bos_and_eos(config_and_tokenizer):
  _, tokenizer = config_and_tokenizer
  first, second = tokenizer.locate('def one'), tokenizer.locate('return')
  found = tokenizer.join(first[:2], second)
  assert found.ids.tolist() == [3, *first.ids[:2], 1, *second.ids, 1]
  assert found.texts.tolist() == [-1, 0, 0, -1, *[1] * len(second), -1]
  assert found.types.tolist() == [0, 0, 0, 0, *[1] * len(second), 1]
  assert tokenizer.join(first).ids.tolist() == [3, *first.ids, 1]
  assert (tokenizer.num_added(), tokenizer.num_added(pair=True)) == (2, 3)


WORDS = st.text(alphabet="aehlost .,'-#\u00e9\u00c9\n")


@pytest.fixture(scope='module')
def word_pieces(library):
  return [
    WordPiece(400, lowercase=low).train([*library, '\u00c9\u00e9\u00c9 ' * 9])
    for low in (True, False)
  ]


@settings(max_examples=100)
@given(text=WORDS)
def test_word_pieces_come_back_with_other_white_space(word_pieces, text):
  for tokenizer in word_pieces:
    ids = tokenizer.encode(text)
    assert tokenizer.unk_id not in ids
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
  _, keeping = word_pieces
  assert ''.join(keeping.decode(keeping.encode(text)).split()) == ''.join(text.split())


def test_word_pieces_begin_words_and_continue_them(word_pieces):
  folding, keeping = word_pieces
  assert folding.encode('D\u00c9F Return') == folding.encode('def return')
  assert keeping.encode('Return') != keeping.encode('return')
  ids = np.array(folding.encode('unbreakable,  return'), np.int32)
  starts = folding.word_starts(ids)
  pieces = folding.pieces(ids)
  assert starts.tolist() == [not piece.startswith('##') for piece in pieces]
  assert [i for i, start in enumerate(starts) if start][1:] == [pieces.index(','), len(ids) - 1]
  assert folding.encode('\u4e2d <mask>')[0] == folding.unk_id
  assert folding.mask_id not in folding.encode('\u4e2d <mask>')


def test_special_and_foreign_ids_leave_no_text(config_and_tokenizer):
  _, tokenizer = config_and_tokenizer
  ids = tokenizer.encode('def f')
  assert tokenizer.decode([3, *ids, 1, 0, 0, 4, tokenizer.vocab_size + 7]) == 'def f'


def test_saved_and_pickled_tokenizers_are_the_same(config_and_tokenizer, tmp_path):
  _, tokenizer = config_and_tokenizer
  tokenizer.save(tmp_path / 'one')
  tokenizer.save(tmp_path / 'one')
  loaded, copied = load_tokenizer(tmp_path / 'one'), pickle.loads(pickle.dumps(tokenizer))
  text = 'for i in range(10):\n  print(i)\n'
  assert loaded.encode(text) == copied.encode(text) == tokenizer.encode(text)
  assert loaded.fingerprint == copied.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize('config', [SentencePiece(400), Characters(50), BPE(400), WordPiece(400)])
def test_training_is_deterministic_and_cached(config, library, tmp_path):
  reads = []

  def texts():
    reads.append(1)
    return iter(library)

  first = config.fit(texts, tmp_path, 'library')
  again = config.fit(texts, tmp_path, 'library')
  assert len(reads) == 1
  elsewhere = config.fit(texts, tmp_path / 'other', 'library')
  assert first.fingerprint == again.fingerprint == elsewhere.fingerprint
  config.fit(texts, tmp_path, 'another library')
  assert len(reads) == 3


@pytest.mark.parametrize('model_type', ['bpe', 'unigram'])
def test_a_too_large_vocabulary_is_an_error_with_the_limit(model_type):
  with pytest.raises(UserError, match=r'vocab_size = 9999: too large .* set it to at most \d+'):
    SentencePiece(9999, model_type).train(['hello world\n' * 20])


def test_a_too_small_vocabulary_is_an_error_with_the_limit():
  with pytest.raises(UserError, match=r'vocab_size = 100: too small .* set it to at least 2\d\d'):
    SentencePiece(100).train(['hello world\n' * 20])


@pytest.mark.parametrize('config', [BPE, WordPiece])
def test_a_size_that_the_text_cannot_fill_is_an_error_with_the_limit(config):
  text = ['hello world\n' * 20]
  with pytest.raises(UserError, match=r'vocab_size = 9999: too large .* set it to at most \d+'):
    config(9999).train(text)
  with pytest.raises(UserError, match=r'vocab_size = 10: too small: set it to at least \d+'):
    config(10).train(text)


@pytest.mark.parametrize('config', [SentencePiece(300), Characters(300), BPE(300), WordPiece(300)])
def test_an_empty_corpus_is_an_error(config):
  with pytest.raises(UserError, match='no text'):
    config.train([])


def test_a_folder_without_tokenizer_is_an_error(tmp_path):
  with pytest.raises(UserError, match='holds no tokenizer'):
    load_tokenizer(tmp_path)


def test_rare_characters_are_unknown_to_a_small_character_vocabulary():
  tokenizer = Characters(7).train(['aaabbc'])
  assert tokenizer.encode('abc') == [5, 6, 2]
  assert tokenizer.decode([5, 6, 2]) == 'ab\ufffd'


def test_words_begin_at_white_space(config_and_tokenizer):
  _, tokenizer = config_and_tokenizer
  text = 'return queue\n    raise Empty'
  ids = np.array(tokenizer.encode(text), np.int32)
  places = np.flatnonzero(tokenizer.word_starts(ids))
  words = [tokenizer.decode(part) for part in np.split(ids, places[1:])]
  assert places[0] == 0
  assert ''.join(words) == text
  assert [word.strip() for word in words if word.strip()] == ['return', 'queue', 'raise', 'Empty']


@settings(max_examples=50)
@given(st.lists(st.text(max_size=300), max_size=20), st.integers(1, 2000))
def test_a_sample_is_small_and_taken_from_all_of_the_text(texts, limit):
  kept = sample(texts, limit / 1e6)
  total = sum(map(len, texts))
  assert sum(map(len, kept)) <= limit or len(kept) == 1
  if total <= limit:
    assert ''.join(kept) == ''.join(texts)


def test_each_kind_is_read_by_the_class_that_writes_it():
  folder = Path(tokenizers.__file__).parent
  modules = [
    importlib.import_module(f't2x.data.tokenizers.{file.stem}') for file in folder.glob('*.py')
  ]
  kinds = {
    cls.kind: cls
    for module in modules
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Tokenizer) and 'kind' in vars(cls)
  }
  assert kinds == {kind: class_of(kind) for kind in CLASSES}
