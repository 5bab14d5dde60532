"""Which ids are special, told from the files of a model folder."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.data.tokenizers.base import SpecialIds, Template, Tokenizer
from t2x.errors import UserError
from t2x.external_files import REQUIRED, SMALL, Bool, Field, Fields, Ids, Int, Many, Text, read_json

# The usual names, tried where a folder does not say.
USUAL = {
  'pad': ('<pad>', '[PAD]'),
  'eos': ('<|endoftext|>', '</s>', '<eos>', '<|end_of_text|>'),
  'sep': ('[SEP]',),
  'bos': ('<|endoftext|>', '<s>', '<bos>', '<|begin_of_text|>'),
  'cls': ('[CLS]',),
  'unk': ('<unk>', '[UNK]', '<|endoftext|>'),
  'mask': ('<mask>', '[MASK]'),
}


class Token(Field):
  """The text of a token, or an object that holds it as `content`; as the text."""

  @property
  def wanted(self):
    return 'text, or an object with text as content'

  def accepts(self, value):
    return isinstance(value.get('content') if isinstance(value, dict) else value, str)

  def convert(self, value):
    return value['content'] if isinstance(value, dict) else value


class Around(Field):
  """The special ids around texts: [[id, or 'A' or 'B', token type], ...]; as a template."""

  @property
  def wanted(self):
    return "a list of [token id or 'A' or 'B', token type]"

  def accepts(self, value):
    one = Int(None)
    return isinstance(value, list) and all(
      isinstance(item, list)
      and len(item) == 2
      and (item[0] in ('A', 'B') or one.accepts(item[0]))
      and one.accepts(item[1])
      for item in value
    )

  def convert(self, value):
    return tuple(map(tuple, value))


# What is read of tokenizer_config.json, special_tokens_map.json, config.json and generation_config.json.
TOKENS: Mapping[str, Field] = {f'{role}_token': Token(None) for role in USUAL}
TOKENIZER: Mapping[str, Field] = {
  **TOKENS,
  'add_prefix_space': Bool(False),
  'do_lower_case': Bool(True),
  'extra_ids': Int(100, 0, 100_000),
  'keep_accents': Bool(False),
  'separate_vocabs': Bool(False),
  'strip_accents': Bool(None),
  'tokenize_chinese_chars': Bool(True),
}
MODEL: Mapping[str, Field] = {
  'bos_token_id': Ids(None),
  'decoder_start_token_id': Ids(None),
  'eos_token_id': Ids(None),
  'model_type': Text(None),
  'pad_token_id': Ids(None),
}
_ID = Int(REQUIRED)
KNOWN: Mapping[str, Field] = {
  'before': Many(REQUIRED, _ID),
  'bos_id': _ID,
  'eos_id': _ID,
  'literal': Bool(REQUIRED),
  'mask_id': Int(None),
  'pad_id': _ID,
  'pair': Around(REQUIRED),
  'single': Around(REQUIRED),
  'start_id': _ID,
  'unk_id': _ID,
}


class Unsupported(UserError):
  """A model folder has no tokenizer, or one of a kind that is not read here."""


@dataclasses.dataclass(frozen=True)
class Known:
  """What is to be known of a tokenizer beside its pieces; what is not said is as in t2x's own.

  Attributes:
    single: the special ids around one text.
    pair: the special ids around two.
    literal: special tokens that are spelt out in a text are text.
  The others are those of `SpecialIds`.
  """

  pad_id: int = SpecialIds.pad_id
  eos_id: int = SpecialIds.eos_id
  unk_id: int = SpecialIds.unk_id
  bos_id: int = SpecialIds.bos_id
  mask_id: int | None = SpecialIds.mask_id
  start_id: int = SpecialIds.start_id
  before: tuple[int, ...] = SpecialIds.before
  single: Template = Tokenizer.single
  pair: Template = Tokenizer.pair
  literal: bool = True

  @classmethod
  def read(cls, known: Mapping[str, Any], where: str) -> 'Known':
    """From JSON, which has lists for tuples; `where` is the file.

    Raises:
      UserError: a field is missing or of another kind.
    """
    fields = Fields(known, KNOWN, where)
    return cls(**{**fields, 'before': tuple(fields['before'])})

  def tell(self, tokenizer: Any) -> None:
    """Sets the attributes of a tokenizer."""
    for field in dataclasses.fields(self):
      setattr(tokenizer, field.name, getattr(self, field.name))


@dataclasses.dataclass(frozen=True)
class Folder:
  """A model folder and what its small files say.

  Attributes:
    path: the folder.
    tokenizer: tokenizer_config.json, and the tokens of special_tokens_map.json.
    model: config.json and generation_config.json.
  """

  path: Path
  tokenizer: Mapping[str, Any]
  model: Mapping[str, Any]

  @classmethod
  def read(cls, path: Path) -> 'Folder':
    """A file that is not there says nothing, and so does a field that is null.

    Raises:
      UserError: a file is not JSON, or a field of another kind.
    """
    tokenizer = {**Fields({}, TOKENIZER, str(path))}
    tokenizer |= _said(path / 'special_tokens_map.json', TOKENS)
    tokenizer |= _said(path / 'tokenizer_config.json', TOKENIZER)
    model = {**Fields({}, MODEL, str(path))} | _said(path / 'config.json', MODEL)
    return cls(path, tokenizer, model | _said(path / 'generation_config.json', MODEL))

  def token(self, role: str, lookup: Callable[[str], int | None]) -> int | None:
    """The id of the token with a role, as the folder names it or as it is usual."""
    named = self.tokenizer[f'{role}_token']
    names = USUAL[role] if named is None else (named,)
    return next((i for name in names if (i := lookup(name)) is not None), None)

  def known(self, lookup: Callable[[str], int | None], single: Template, pair: Template) -> Known:
    """All that is special.

    Args:
      lookup: the id of a special token by its text.
      single: the special ids around one text.
      pair: the special ids around two.
    """
    token = {role: self.token(role, lookup) for role in USUAL}
    said = {role: _one(self.model[f'{role}_token_id']) for role in ('pad', 'eos', 'bos')}
    eos = _first(token['eos'], token['sep'], said['eos'], token['bos'], token['pad'], token['unk'])
    if eos is None:
      raise Unsupported(
        f'{self.path}: no file says which token is special: '
        'set eos_token, and pad_token where there is one, in its tokenizer_config.json'
      )
    bos = _first(token['bos'], token['cls'], said['bos'], eos)
    pad = _first(token['pad'], said['pad'], eos)
    letters = [item for item, _ in single]
    return Known(
      pad_id=pad,
      eos_id=eos,
      unk_id=_first(token['unk'], eos),
      bos_id=bos,
      mask_id=token['mask'],
      start_id=_first(self.decoder_start, bos),
      before=tuple(i for i in letters[: letters.index('A')] if isinstance(i, int)),
      single=single,
      pair=pair,
      literal=False,
    )

  @property
  def decoder_start(self) -> int | None:
    """What config.json says that a decoder reads first."""
    return _one(self.model['decoder_start_token_id'])


def _first(*ids: int | None) -> Any:
  return next((i for i in ids if i is not None), None)


def _one(ids: Sequence[int] | None) -> int | None:
  """The first of several, or the only one."""
  return ids[0] if ids else None


def _said(path: Path, declared: Mapping[str, Field]) -> dict[str, Any]:
  """The declared fields that a JSON file has."""
  given = read_json(path, SMALL) if path.exists() else {}
  named = {name: field for name, field in declared.items() if given.get(name) is not None}
  return {**Fields(given, named, str(path))}
