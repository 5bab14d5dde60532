"""Special tokens of a model folder, read from its JSON files."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import SMALL, Bool, Field, Fields, Ids, Int, Text, read_json
from t2x.data.tokenizers.base import SpecialIds, Template, Tokenizer

# The names to try for each role that the folder does not define.
USUAL_NAMES = {
  'pad': ('<pad>', '[PAD]'),
  'eos': ('<|endoftext|>', '</s>', '<eos>', '<|end_of_text|>'),
  'sep': ('[SEP]',),
  'bos': ('<|endoftext|>', '<s>', '<bos>', '<|begin_of_text|>'),
  'cls': ('[CLS]',),
  'unk': ('<unk>', '[UNK]', '<|endoftext|>'),
  'mask': ('<mask>', '[MASK]'),
}


class TokenField(Field):
  """The text of a token, or an object with the text as `content`; converted to the text."""

  @property
  def wanted(self):
    return 'text, or an object with text as content'

  def accepts(self, value):
    return isinstance(value.get('content') if isinstance(value, dict) else value, str)

  def convert(self, value):
    return value['content'] if isinstance(value, dict) else value


# Fields of special_tokens_map.json (TOKENS), tokenizer_config.json (TOKENIZER), config.json and
# generation_config.json (MODEL).
TOKENS: Mapping[str, Field] = {f'{role}_token': TokenField(None) for role in USUAL_NAMES}
TOKENIZER: Mapping[str, Field] = {
  **TOKENS,
  'add_prefix_space': Bool(False),
  'do_lower_case': Bool(True),
  'extra_ids': Int(100, 0, 100_000),
  'keep_accents': Bool(False),
  'separate_vocabs': Bool(False),
  'strip_accents': Bool(None),
  'tokenize_chinese_chars': Bool(True),
  'tokenizer_class': Text(None),
}
MODEL: Mapping[str, Field] = {
  'bos_token_id': Ids(None),
  'decoder_start_token_id': Ids(None),
  'eos_token_id': Ids(None),
  'model_type': Text(None),
  'pad_token_id': Ids(None),
}


class Unsupported(UserError):
  """The model folder has no tokenizer, or one of an unsupported type."""


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
  """The special ids and templates of a tokenizer; the defaults are those of tokenizers trained by t2x.

  The ids and `before` are those of `SpecialIds`.

  Attributes:
    single: template of one text.
    pair: template of two texts.
    literal: encodes names of special tokens in a text as plain text.
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
  def read(cls, saved: Mapping[str, Any]) -> 'SpecialTokens':
    """Builds the object from JSON. Raises KeyError, TypeError or ValueError for other JSON."""
    values = {field.name: saved[field.name] for field in dataclasses.fields(cls)}
    for name in ('single', 'pair'):
      values[name] = tuple((item, kind) for item, kind in values[name])
    return cls(**{**values, 'before': tuple(values['before'])})

  def set_attributes(self, tokenizer: object) -> None:
    """Sets the ids and templates as attributes of a tokenizer."""
    for field in dataclasses.fields(self):
      setattr(tokenizer, field.name, getattr(self, field.name))


@dataclasses.dataclass(frozen=True)
class TokenizerFolder:
  """A model folder with the fields of its JSON files.

  Attributes:
    path: the folder.
    tokenizer: fields of tokenizer_config.json and special_tokens_map.json.
    model: fields of config.json and generation_config.json.
  """

  path: Path
  tokenizer: Mapping[str, Any]
  model: Mapping[str, Any]

  @classmethod
  def read(cls, path: Path) -> 'TokenizerFolder':
    """Reads the JSON files; missing files and null fields leave the defaults.

    Raises:
      UserError: a file is not JSON, or a field is invalid.
    """
    tokenizer = {**Fields({}, TOKENIZER, str(path))}
    tokenizer |= _read_fields(path / 'special_tokens_map.json', TOKENS)
    tokenizer |= _read_fields(path / 'tokenizer_config.json', TOKENIZER)
    model = {**Fields({}, MODEL, str(path))} | _read_fields(path / 'config.json', MODEL)
    return cls(path, tokenizer, model | _read_fields(path / 'generation_config.json', MODEL))

  def token(self, role: str, lookup: Callable[[str], int | None]) -> int | None:
    """Returns the id of the token with a role, by the folder's name for it or a usual name."""
    name_in_folder = self.tokenizer[f'{role}_token']
    names = USUAL_NAMES[role] if name_in_folder is None else (name_in_folder,)
    return next((i for name in names if (i := lookup(name)) is not None), None)

  def special_tokens(
    self, lookup: Callable[[str], int | None], single: Template, pair: Template
  ) -> SpecialTokens:
    """Collects the special ids.

    Args:
      lookup: returns the id of a special token by its text.
      single: template of one text.
      pair: template of two texts.

    Raises:
      Unsupported: the files define no special token.
    """
    token = {role: self.token(role, lookup) for role in USUAL_NAMES}
    config = {role: _first_id(self.model[f'{role}_token_id']) for role in ('pad', 'eos', 'bos')}
    eos = _first(
      token['eos'], token['sep'], config['eos'], token['bos'], token['pad'], token['unk']
    )
    if eos is None:
      raise Unsupported(
        f'{self.path}: no file defines a special token: set eos_token, and pad_token if the model '
        'has one, in its tokenizer_config.json'
      )
    bos = _first(token['bos'], token['cls'], config['bos'], eos)
    pad = _first(token['pad'], config['pad'], eos)
    items = [item for item, _ in single]
    return SpecialTokens(
      pad_id=pad,
      eos_id=eos,
      unk_id=_first(token['unk'], eos),
      bos_id=bos,
      mask_id=token['mask'],
      start_id=_first(self.decoder_start, bos),
      before=tuple(i for i in items[: items.index('A')] if isinstance(i, int)),
      single=single,
      pair=pair,
      literal=False,
    )

  @property
  def decoder_start(self) -> int | None:
    """The decoder's first input id (`decoder_start_token_id`), if the files define it."""
    return _first_id(self.model['decoder_start_token_id'])


def _first(*ids: int | None) -> Any:
  return next((i for i in ids if i is not None), None)


def _first_id(ids: Sequence[int] | None) -> int | None:
  return ids[0] if ids else None


def _read_fields(path: Path, declared: Mapping[str, Field]) -> dict[str, Any]:
  """Returns the declared fields that a JSON file has."""
  contents = read_json(path, SMALL) if path.exists() else {}
  present = {name: field for name, field in declared.items() if contents.get(name) is not None}
  return {**Fields(contents, present, str(path))}
