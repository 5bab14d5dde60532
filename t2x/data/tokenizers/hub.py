"""Tokenizers of model folders in Hugging Face's layout.

Reads `tokenizer.json` or, if it is missing, the files of older models: `vocab.txt` (WordPiece of BERT),
`vocab.json` with `merges.txt` (byte-level BPE of GPT-2 and BART; BPE of GPT-1), `spiece.model` (T5,
ALBERT), `source.spm` and `target.spm` with `vocab.json` (Marian). The older files do not state how text is
normalised and split; that follows from the model: BERT (https://arxiv.org/abs/1810.04805), GPT-2 and its
successors, or GPT-1.
"""

import dataclasses
import itertools
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2x.base.errors import UserError
from t2x.base.external_files import LARGE, read_json, read_text, shown
from t2x.base.ranges import Size, Text
from t2x.data.tokenizers.base import Existing, Template, Tokenizer, check_ids
from t2x.data.tokenizers.fast import FastTokenizer, tokenizers_library
from t2x.data.tokenizers.hub_limits import check_limits, vocabulary
from t2x.data.tokenizers.hub_sentencepiece import marian, spiece
from t2x.data.tokenizers.special_tokens import USUAL_NAMES, TokenizerFolder, Unsupported

if TYPE_CHECKING:
  from tokenizers import Encoding
  from tokenizers import Tokenizer as Backend

__all__ = ['HubTokenizer', 'load_hub_tokenizer']

# Model types whose tokenizers split text by Moses' rules first.
MOSES = ('xlm', 'fsmt', 'flaubert')


@dataclasses.dataclass(frozen=True)
class HubTokenizer(Existing):
  """The pretrained tokenizer of a model folder.

  The run folder stores a copy, so the run does not need the model folder again.

  Attributes:
    folder: the model folder.
    vocab_size: number of ids, including special ids; must equal that of the folder's tokenizer.
  """

  folder: Text
  vocab_size: Size

  def load(self):
    """Loads the tokenizer from the folder.

    Raises:
      UserError: the folder's tokenizer has another vocabulary size.
    """
    return self._check_size(load_hub_tokenizer(self.folder), self.folder)


def load_hub_tokenizer(folder: str | Path) -> Tokenizer:
  """Loads the tokenizer of a model folder.

  The special tokens are read from `special_tokens_map.json`, `tokenizer_config.json`, `config.json` and
  `generation_config.json`; roles that no file defines go to tokens with the usual names. [SEP] replaces a
  missing eos, [CLS] a missing bos.

  Raises:
    Unsupported: the folder has no tokenizer, an unsupported type of tokenizer, or no special tokens.
    UserError: a file is damaged, a field has an invalid value, or the tokenizer exceeds a limit.
  """
  path = Path(folder)
  for names, reader in READERS.items():
    if all((path / name).exists() for name in names):
      try:
        tokenizer = reader(TokenizerFolder.read(path))
        check_ids(tokenizer, str(path))
        return tokenizer
      except UserError:
        raise
      # The library raises bare Exceptions, and PanicException is not an Exception.
      except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != 'PanicException':
          raise
        raise UserError(
          f'{path / names[0]} cannot be read as a tokenizer: {shown(error)}'
        ) from error
  supported = ', '.join(' with '.join(names) for names in READERS)
  raise Unsupported(f'{path} holds no tokenizer: it must have one of {supported}')


def tokenizer_json(folder: TokenizerFolder) -> Tokenizer:
  """Reads tokenizer.json."""
  path = folder.path / 'tokenizer.json'
  if 'kind' in read_json(path, LARGE):
    raise UserError(
      f"{folder.path} holds a tokenizer in t2x's own format, not a model folder: use RunTokenizer "
      'with the run folder'
    )
  return _build(folder, tokenizers_library().Tokenizer.from_str(read_text(path)))


def word_pieces(folder: TokenizerFolder) -> Tokenizer:
  """Reads BERT's vocab.txt, with the normalisation settings of tokenizer_config.json."""
  library, settings = tokenizers_library(), folder.tokenizer
  lines = read_text(folder.path / 'vocab.txt').split('\n')
  if lines[-1] == '':
    lines.pop()
  vocab = {line.rstrip('\r'): i for i, line in enumerate(lines)}
  unk = _token_name(folder, 'unk', '[UNK]')
  backend = library.Tokenizer(library.models.WordPiece(vocab, unk_token=unk))
  backend.normalizer = library.normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=settings['tokenize_chinese_chars'],
    strip_accents=settings['strip_accents'],
    lowercase=settings['do_lower_case'],
  )
  backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
  backend.decoder = library.decoders.WordPiece(prefix='##')
  first, last = _token_name(folder, 'cls', '[CLS]'), _token_name(folder, 'sep', '[SEP]')
  backend.post_processor = library.processors.TemplateProcessing(
    single=f'{first}:0 $A:0 {last}:0',
    pair=f'{first}:0 $A:0 {last}:0 $B:1 {last}:1',
    special_tokens=[(first, vocab[first]), (last, vocab[last])],
  )
  _add_special(backend, [_token_name(folder, 'pad', '[PAD]'), unk, first, last])
  _add_special(backend, [_token_name(folder, 'mask', '[MASK]')])
  return _build(folder, backend)


def merges(folder: TokenizerFolder) -> Tokenizer:
  """Reads vocab.json and merges.txt: byte-level BPE, or GPT-1's BPE if pieces end with </w>."""
  model = folder.model['model_type']
  if model in MOSES:
    raise Unsupported(
      f"{folder.path}: the tokenizer of {model} splits text by Moses' rules, which is not supported"
    )
  library = tokenizers_library()
  vocab = vocabulary(folder.path / 'vocab.json')
  lines = read_text(folder.path / 'merges.txt').split('\n')
  pairs = [
    tuple(line.split()) for line in lines if line.strip() and not line.startswith('#version')
  ]
  if any(piece.endswith('</w>') for piece in vocab):
    return _build(folder, _gpt1(library, folder, vocab, pairs))
  return _build(folder, _byte_level(library, folder, vocab, pairs))


def _gpt1(
  library: types.ModuleType, folder: TokenizerFolder, vocab: dict[str, int], pairs: list
) -> Any:
  unk = _token_name(folder, 'unk', '<unk>')
  model = library.models.BPE(vocab, pairs, end_of_word_suffix='</w>', unk_token=unk)
  backend = library.Tokenizer(model)
  backend.normalizer = library.normalizers.BertNormalizer(lowercase=True)
  backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
  backend.decoder = library.decoders.BPEDecoder(suffix='</w>')
  _add_special(backend, [unk])
  return backend


def _byte_level(
  library: types.ModuleType, folder: TokenizerFolder, vocab: dict[str, int], pairs: list
) -> Any:
  """Builds byte-level BPE: RoBERTa's and BART's with <s> and </s>, GPT-2's without special tokens."""
  space = folder.tokenizer['add_prefix_space']
  backend = library.Tokenizer(library.models.BPE(vocab, pairs))
  backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=space)
  backend.decoder = library.decoders.ByteLevel()
  if '<s>' not in vocab or '</s>' not in vocab:
    _add_special(backend, ['<|endoftext|>'])
    return backend
  first, last = _token_name(folder, 'cls', '<s>'), _token_name(folder, 'sep', '</s>')
  sep_and_cls = (last, vocab[last]), (first, vocab[first])
  backend.post_processor = library.processors.RobertaProcessing(
    *sep_and_cls, add_prefix_space=space, trim_offsets=True
  )
  _add_special(
    backend, [first, _token_name(folder, 'pad', '<pad>'), last, _token_name(folder, 'unk', '<unk>')]
  )
  _add_special(backend, [_token_name(folder, 'mask', '<mask>')], lstrip=True)
  return backend


def _token_name(folder: TokenizerFolder, role: str, default: str) -> str:
  return folder.tokenizer[f'{role}_token'] or default


def _add_special(backend: 'Backend', names: list[str], lstrip: bool = False) -> None:
  """Marks tokens of the vocabulary as special; ignores unknown names."""
  token = tokenizers_library().AddedToken
  present = [name for name in names if backend.token_to_id(name) is not None]
  backend.add_special_tokens([token(name, lstrip=lstrip, normalized=False) for name in present])


def _build(folder: TokenizerFolder, backend: 'Backend') -> Tokenizer:
  """Returns the tokenizer with its special tokens and templates."""
  check_limits(backend, str(folder.path))
  backend.no_truncation()
  backend.no_padding()
  special = {
    token.content: i for i, token in backend.get_added_tokens_decoder().items() if token.special
  }
  # A token with a role in the folder's files is special even if tokenizer.json does not mark it.
  names = {_token_name(folder, role, '') for role in USUAL_NAMES}
  named = {name: i for name in names if (i := backend.token_to_id(name)) is not None}
  lookup = (named | special).get
  probe = _probe(backend)
  single = _template(backend.encode(probe))
  pair = _template(backend.encode(probe, probe))
  return FastTokenizer(backend.to_str(), folder.special_tokens(lookup, single, pair))


def _probe(backend: 'Backend') -> str:
  """Returns a text with at least one token."""
  encode: Callable[..., Any] = backend.encode
  # A tokenizer without an unk token fails here, not in training.
  encode('\U0010fffd', add_special_tokens=False)
  pieces = (backend.decode([i]) for i in range(min(backend.get_vocab_size(), 10_000)))
  texts = itertools.chain(('a', '1', '.'), pieces)
  return next(text for text in texts if encode(text, add_special_tokens=False).ids)


def _template(encoding: 'Encoding') -> Template:
  """Derives the template from the encoding of one text or of a pair."""
  items: list[tuple[int | str, int]] = []
  for i, kind, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
    item = (int(i) if text is None else 'AB'[text], int(kind))
    if text is None or item not in items:
      items.append(item)
  return tuple(items)


# Files of each layout -> its reader, in the order in which the layouts are tried.
READERS: Mapping[tuple[str, ...], Callable[[TokenizerFolder], Tokenizer]] = {
  ('tokenizer.json',): tokenizer_json,
  ('source.spm', 'target.spm', 'vocab.json'): marian,
  ('spiece.model',): spiece,
  ('vocab.json', 'merges.txt'): merges,
  ('vocab.txt',): word_pieces,
}
