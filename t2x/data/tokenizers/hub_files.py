"""`tokenizer.json` and the files of older models, read as tokenizers of the `tokenizers` library.

The older ones say how text is cut by the class of the model alone: that of BERT
(https://arxiv.org/abs/1810.04805), of GPT-2 and those after it, of GPT-1.
"""

import itertools
from collections.abc import Callable
from typing import Any

from t2x.data.tokenizers.base import Template, Tokenizer
from t2x.data.tokenizers.fast import FastTokenizer, tokenizers_library
from t2x.data.tokenizers.hub_limits import check_limits, vocabulary
from t2x.data.tokenizers.special_tokens import USUAL, Folder, Unsupported
from t2x.errors import UserError
from t2x.external_files import LARGE, read_json, read_text

# Models that cut text with Moses' rules before the pieces are made.
MOSES = ('xlm', 'fsmt', 'flaubert')


def tokenizer_json(folder: Folder) -> Tokenizer:
  """What the library has written."""
  path = folder.path / 'tokenizer.json'
  if 'kind' in read_json(path, LARGE):
    raise UserError(f'{folder.path} holds a tokenizer of t2x, not of a model folder')
  return _finished(folder, tokenizers_library().Tokenizer.from_str(read_text(path)))


def word_pieces(folder: Folder) -> Tokenizer:
  """BERT: vocab.txt, and do_lower_case, strip_accents and tokenize_chinese_chars as they are said."""
  library, said = tokenizers_library(), folder.tokenizer
  lines = read_text(folder.path / 'vocab.txt').split('\n')
  if lines[-1] == '':
    lines.pop()
  vocab = {line.rstrip('\r'): i for i, line in enumerate(lines)}
  unk = _name(folder, 'unk', '[UNK]')
  backend = library.Tokenizer(library.models.WordPiece(vocab, unk_token=unk))
  backend.normalizer = library.normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=said['tokenize_chinese_chars'],
    strip_accents=said['strip_accents'],
    lowercase=said['do_lower_case'],
  )
  backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
  backend.decoder = library.decoders.WordPiece(prefix='##')
  first, last = _name(folder, 'cls', '[CLS]'), _name(folder, 'sep', '[SEP]')
  backend.post_processor = library.processors.TemplateProcessing(
    single=f'{first}:0 $A:0 {last}:0',
    pair=f'{first}:0 $A:0 {last}:0 $B:1 {last}:1',
    special_tokens=[(first, vocab[first]), (last, vocab[last])],
  )
  _add_special(backend, [_name(folder, 'pad', '[PAD]'), unk, first, last])
  _add_special(backend, [_name(folder, 'mask', '[MASK]')])
  return _finished(folder, backend)


def merges(folder: Folder) -> Tokenizer:
  """BPE: of bytes, or of GPT-1's characters where words end with </w>."""
  model = folder.model['model_type']
  if model in MOSES:
    raise Unsupported(f"{folder.path}: the tokenizer of {model} needs Moses' rules: not read here")
  library = tokenizers_library()
  vocab = vocabulary(folder.path / 'vocab.json')
  lines = read_text(folder.path / 'merges.txt').split('\n')
  pairs = [
    tuple(line.split()) for line in lines if line.strip() and not line.startswith('#version')
  ]
  if any(piece.endswith('</w>') for piece in vocab):
    return _finished(folder, _gpt1(library, folder, vocab, pairs))
  return _finished(folder, _byte_level(library, folder, vocab, pairs))


def _gpt1(library: Any, folder: Folder, vocab: dict[str, int], pairs: list) -> Any:
  unk = _name(folder, 'unk', '<unk>')
  model = library.models.BPE(vocab, pairs, end_of_word_suffix='</w>', unk_token=unk)
  backend = library.Tokenizer(model)
  backend.normalizer = library.normalizers.BertNormalizer(lowercase=True)
  backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
  backend.decoder = library.decoders.BPEDecoder(suffix='</w>')
  _add_special(backend, [unk])
  return backend


def _byte_level(library: Any, folder: Folder, vocab: dict[str, int], pairs: list) -> Any:
  """GPT-2 adds nothing around a text; RoBERTa and BART, whose vocabulary has <s>, do."""
  space = folder.tokenizer['add_prefix_space']
  backend = library.Tokenizer(library.models.BPE(vocab, pairs))
  backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=space)
  backend.decoder = library.decoders.ByteLevel()
  if '<s>' not in vocab or '</s>' not in vocab:
    _add_special(backend, ['<|endoftext|>'])
    return backend
  first, last = _name(folder, 'cls', '<s>'), _name(folder, 'sep', '</s>')
  pairs_around = (last, vocab[last]), (first, vocab[first])
  backend.post_processor = library.processors.RobertaProcessing(
    *pairs_around, add_prefix_space=space, trim_offsets=True
  )
  _add_special(backend, [first, _name(folder, 'pad', '<pad>'), last, _name(folder, 'unk', '<unk>')])
  _add_special(backend, [_name(folder, 'mask', '<mask>')], lstrip=True)
  return backend


def _name(folder: Folder, role: str, usual: str) -> str:
  return folder.tokenizer[f'{role}_token'] or usual


def _add_special(backend: Any, names: list[str], lstrip: bool = False) -> None:
  """Those that the vocabulary has."""
  token = tokenizers_library().AddedToken
  known = [name for name in names if backend.token_to_id(name) is not None]
  backend.add_special_tokens([token(name, lstrip=lstrip, normalized=False) for name in known])


def _finished(folder: Folder, backend: Any) -> Tokenizer:
  """The tokenizer with what is special about it."""
  check_limits(backend, str(folder.path))
  backend.no_truncation()
  backend.no_padding()
  special = {
    token.content: i for i, token in backend.get_added_tokens_decoder().items() if token.special
  }
  # A token that the folder gives a role counts, whether the library calls it special or not.
  said = {_name(folder, role, '') for role in USUAL}
  named = {name: i for name in said if (i := backend.token_to_id(name)) is not None}
  lookup = (named | special).get
  probe = _probe(backend)
  single = _template(backend.encode(probe))
  pair = _template(backend.encode(probe, probe))
  return FastTokenizer(backend.to_str(), folder.known(lookup, single, pair))


def _probe(backend: Any) -> str:
  """A text that has pieces."""
  encode: Callable[..., Any] = backend.encode
  # A tokenizer without a token for what it does not know fails at such a text.
  encode('\U0010fffd', add_special_tokens=False)
  pieces = (backend.decode([i]) for i in range(min(backend.get_vocab_size(), 10_000)))
  texts = itertools.chain(('a', '1', '.'), pieces)
  return next(text for text in texts if encode(text, add_special_tokens=False).ids)


def _template(encoding: Any) -> Template:
  """Special ids and letters, from the encoding of one text or two."""
  found: list[tuple[int | str, int]] = []
  for i, kind, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
    item = (int(i) if text is None else 'AB'[text], int(kind))
    if text is None or item not in found:
      found.append(item)
  return tuple(found)
