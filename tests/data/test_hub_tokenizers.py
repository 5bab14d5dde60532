"""The tokenizers of other people's model folders, without other people's libraries to compare with."""

import json
import pickle
import shutil
import sys

import hub_folders
import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import HubTokenizer, load_hub_tokenizer, load_tokenizer

FAMILIES = list(hub_folders.MAKERS)
ROLES = ('pad', 'eos', 'unk', 'bos', 'mask', 'start')
# What a model calls each role, and what it wants around two texts.
SPECIAL = {
  'bert': ('[PAD]', '[SEP]', '[UNK]', '[CLS]', '[MASK]', '[CLS]'),
  'gpt1': ('<unk>', '<unk>', '<unk>', '<unk>', None, '<unk>'),
  'gpt2': ('<|endoftext|>',) * 4 + (None, '<|endoftext|>'),
  'bart': ('<pad>', '</s>', '<unk>', '<s>', '<mask>', '</s>'),
  't5': ('<pad>', '</s>', '<unk>', '</s>', None, '<pad>'),
  'albert': ('<pad>', '[SEP]', '<unk>', '[CLS]', '[MASK]', '[CLS]'),
  'marian': ('<pad>', '</s>', '<unk>', '</s>', None, '<pad>'),
}
PAIRS = {
  'bert': ('[CLS] A [SEP] B [SEP]', '00011'),
  'gpt1': ('A B', '01'),
  'gpt2': ('A B', '01'),
  'bart': ('<s> A </s> </s> B </s>', '000000'),
  't5': ('A </s> B </s>', '0000'),
  'albert': ('[CLS] A [SEP] B [SEP]', '00011'),
  'marian': ('A B </s>', '011'),
}


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  root = tmp_path_factory.mktemp('hub')
  return {family: hub_folders.make(root / family, family) for family in FAMILIES}


@pytest.fixture(scope='module')
def tokenizers(folders):
  return {family: load_hub_tokenizer(folder) for family, folder in folders.items()}


@pytest.fixture(params=FAMILIES)
def family(request):
  return request.param


def test_special_ids_are_read_from_the_files(tokenizers, family):
  tokenizer = tokenizers[family]
  ids = [getattr(tokenizer, f'{role}_id') for role in ROLES]
  assert tuple(i if i is None else tokenizer.pieces([i])[0] for i in ids) == SPECIAL[family]
  assert tokenizer.special[[i for i in ids if i is not None]].all()
  assert not tokenizer.special[tokenizer.encode('bracketed')].any()


def test_two_texts_are_enclosed_in_the_special_tokens_of_the_model(tokenizers, family):
  tokenizer = tokenizers[family]
  first, second = 'Hello  world', 'worst of times.'
  found = tokenizer.encode_pair(first, second)
  items, types = PAIRS[family]
  ids, kinds, texts = [], [], []
  for item, kind in zip(items.split(), types, strict=True):
    part = {'A': tokenizer.encode(first), 'B': tokenizer.encode(second)}.get(item)
    texts += [-1] if part is None else ['AB'.index(item)] * len(part)
    ids += [found.ids[len(ids)]] if part is None else part
    kinds += [int(kind)] * (len(ids) - len(kinds))
  assert found.ids.tolist() == ids
  assert found.types.tolist() == kinds
  assert found.texts.tolist() == texts
  special = [piece for piece in items.split() if piece not in 'AB']
  assert tokenizer.pieces(found.ids[found.texts < 0]) == special
  assert tokenizer.num_added(pair=True) == len(special)
  assert not found.spans[found.texts < 0].any()
  last = found.spans[found.texts == 1][-1]
  assert second[last[0] : last[1]] in ('.', 's.')
  assert len(tokenizer.encode_pair('')) >= tokenizer.num_added()


def test_saved_and_pickled_tokenizers_need_the_folder_no_more(folders, family, tmp_path):
  folder = shutil.copytree(folders[family], tmp_path / 'model')
  tokenizer = load_hub_tokenizer(folder)
  tokenizer.save(tmp_path / 'run')
  shutil.rmtree(folder)
  for other in (load_tokenizer(tmp_path / 'run'), pickle.loads(pickle.dumps(tokenizer))):
    assert other.fingerprint == tokenizer.fingerprint
    for text in hub_folders.SENTENCES:
      assert other.encode(text) == tokenizer.encode(text)
      assert other.target.encode(text) == tokenizer.target.encode(text)
    for role in ROLES:
      assert getattr(other, f'{role}_id') == getattr(tokenizer, f'{role}_id')
    assert (other.before, other.single, other.pair) == (
      tokenizer.before,
      tokenizer.single,
      tokenizer.pair,
    )


def test_written_model_folders_are_read_as_the_same(tokenizers, folders, family, tmp_path):
  for name, contents in tokenizers[family].hub_files().items():
    (tmp_path / name).write_bytes(contents)
  shutil.copy(folders[family] / 'config.json', tmp_path)
  again = load_hub_tokenizer(tmp_path)
  for text in hub_folders.SENTENCES:
    assert (again.encode_pair(text).ids == tokenizers[family].encode_pair(text).ids).all()
  for role in ROLES:
    assert getattr(again, f'{role}_id') == getattr(tokenizers[family], f'{role}_id')


AWKWARD = "\t\n  ab\u00e9e\u0301\u4e2d\ufb01\u00bd\u2581\0\U0001f600.'`</s>[MASK]"


@pytest.mark.parametrize('name', FAMILIES)
@settings(max_examples=60)
@given(text=st.text() | st.text(alphabet=AWKWARD))
def test_spans_are_in_the_text_and_in_order(tokenizers, name, text):
  tokenizer = tokenizers[name]
  found = tokenizer.locate(text)
  ids = tokenizer.encode(text)
  assert found.ids.tolist() == ids == tokenizer.encode_batch([text])[0]
  starts, stops = found.spans.T
  assert (starts >= 0).all() and (starts <= stops).all() and (stops <= len(text)).all()
  assert (np.diff(starts) >= 0).all()
  assert all(text[a:b] == text[a:b].strip() for a, b in found.spans)
  assert tokenizer.word_starts(found.ids).shape == found.ids.shape


def test_the_first_piece_of_a_word_is_determined_by_its_span(tokenizers, family):
  tokenizer = tokenizers[family]
  words = ['Hello', 'unbelievable', '(bracketed)', 'café-owner', '1859']
  text = ' '.join(words)
  starts, stops = tokenizer.locate(text).spans.T
  place = 0
  for word in words:
    inside = np.flatnonzero((starts < place + len(word)) & (stops > place))
    assert starts[inside[0]] == place
    assert stops[inside[-1]] == place + len(word)
    place += len(word) + 1


@settings(max_examples=60)
@given(text=st.text())
def test_t5_cuts_text_as_sentencepiece_does(folders, tokenizers, text):
  model = sentencepiece.SentencePieceProcessor(model_file=str(folders['t5'] / 'spiece.model'))
  assert tokenizers['t5'].encode(text) == model.encode(text)
  assert tokenizers['t5'].decode(model.encode('Hello world')) == 'Hello world'


def test_t5_has_a_hundred_more_ids_from_the_last_one_down(tokenizers):
  tokenizer = tokenizers['t5']
  assert tokenizer.vocab_size == 500
  ids = tokenizer.encode('Hello <extra_id_0> world<extra_id_99>')
  assert ids == [*tokenizer.encode('Hello'), 499, *tokenizer.encode('world'), 400]
  assert tokenizer.decode(ids) == 'Hello world'


def test_albert_folds_letters_and_quotes(tokenizers):
  tokenizer = tokenizers['albert']
  assert tokenizer.encode("``Naïve'' CAFÉ") == tokenizer.encode('"naive" cafe')
  found = tokenizer.locate("``Naïve''")
  assert found.spans[0].tolist() == [0, 2] or found.spans[1].tolist() == [0, 2]
  assert found.spans[-1].tolist() == [7, 9]


def test_marian_cuts_each_side_with_its_own_model(folders, tokenizers):
  source, text = tokenizers['marian'], hub_folders.SENTENCES[1]
  for tokenizer, name in ((source, 'source'), (source.target, 'target')):
    file = str(folders['marian'] / f'{name}.spm')
    pieces = sentencepiece.SentencePieceProcessor(model_file=file).encode(text, out_type=str)
    known = [piece if piece in tokenizer.pieces(range(400)) else '<unk>' for piece in pieces]
    assert tokenizer.pieces(tokenizer.encode(text)) == known
  assert source.encode(text) != source.target.encode(text)
  assert source.pieces(source.encode('>>de<< Hello'))[0] == '>>de<<'


def test_other_ids_decode_to_text(tokenizers):
  text = hub_folders.SENTENCES[0]
  for family, tokenizer in tokenizers.items():
    ids = tokenizer.encode_pair(text).ids
    folded = text.lower() if family in ('bert', 'gpt1', 'albert') else text
    told = tokenizer.decode([*ids, tokenizer.pad_id, tokenizer.vocab_size + 3, -1])
    assert told.replace(' ', '') == folded.replace(' ', '')


def test_special_tokens_are_read_from_the_files(folders, tmp_path):
  folder = shutil.copytree(folders['bert'], tmp_path / 'model')
  said = {'eos_token': {'content': '##s', '__type': 'AddedToken'}, 'mask_token': None}
  (folder / 'tokenizer_config.json').write_text(json.dumps(said | {'do_lower_case': False}))
  (folder / 'special_tokens_map.json').write_text(json.dumps({'bos_token': '[SEP]'}))
  (folder / 'generation_config.json').write_text(json.dumps({'decoder_start_token_id': [7, 8]}))
  tokenizer = load_hub_tokenizer(folder)
  assert tokenizer.pieces([tokenizer.eos_id, tokenizer.bos_id]) == ['##s', '[SEP]']
  assert tokenizer.start_id == 7
  assert tokenizer.pieces(tokenizer.encode('Hello')) == ['[UNK]']


def test_the_config_knows_ids_without_text(folders):
  config = HubTokenizer(folder=str(folders['bart']), vocab_size=500)
  assert (config.ids.bos_id, config.ids.eos_id, config.ids.start_id) == (0, 2, 2)
  tokenizer = config.fit(lambda: pytest.fail('texts are not read'))
  assert tokenizer.encode('Hello') == load_hub_tokenizer(folders['bart']).encode('Hello')
  with pytest.raises(UserError, match=r'vocab_size = 7, but the tokenizer of .*bart has 500 ids'):
    HubTokenizer(folder=str(folders['bart']), vocab_size=7).fit(list)


def test_unreadable_files_are_errors(folders, tmp_path, monkeypatch):
  with pytest.raises(
    UserError, match=r'no tokenizer: it must have one of tokenizer\.json, source\.spm with'
  ):
    load_hub_tokenizer(tmp_path)
  (tmp_path / 'tokenizer.json').write_text('{"model": 3}')
  with pytest.raises(UserError, match=r'tokenizer\.json cannot be read'):
    load_hub_tokenizer(tmp_path)
  load_hub_tokenizer(folders['t5']).save(tmp_path / 'saved')
  with pytest.raises(UserError, match="a tokenizer in t2x's own format, not a model folder"):
    load_hub_tokenizer(tmp_path / 'saved')
  xlm = shutil.copytree(folders['gpt1'], tmp_path / 'xlm')
  (xlm / 'config.json').write_text('{"model_type": "xlm"}')
  with pytest.raises(UserError, match="xlm splits text by Moses' rules"):
    load_hub_tokenizer(xlm)
  plain = shutil.copytree(folders['gpt2'], tmp_path / 'plain')
  vocab = json.loads((plain / 'vocab.json').read_text())
  del vocab['<|endoftext|>']
  (plain / 'vocab.json').write_text(json.dumps(vocab))
  (plain / 'config.json').unlink()
  with pytest.raises(UserError, match='no file defines a special token'):
    load_hub_tokenizer(plain)
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  with pytest.raises(UserError, match=r"pip install 't2x\[samples\]'"):
    load_hub_tokenizer(folders['bert'])
