"""Which ids are special, told from the files of a model folder."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t2x.data.tokenizers.base import SpecialIds, Template, Tokenizer
from t2x.errors import UserError

__all__ = ['USUAL', 'Folder', 'Known']

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
  def read(cls, known: Mapping[str, Any]) -> 'Known':
    """From JSON, which has lists for tuples."""
    templates = {name: tuple(map(tuple, known[name])) for name in ('single', 'pair')}
    return cls(**{**known, 'before': tuple(known['before']), **templates})

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
    """A file that is not there says nothing."""
    tokenizer = _json(path / 'special_tokens_map.json')
    tokenizer |= {k: v for k, v in _json(path / 'tokenizer_config.json').items() if v is not None}
    return cls(
      path, tokenizer, _json(path / 'config.json') | _json(path / 'generation_config.json')
    )

  def token(self, role: str, lookup: Callable[[str], int | None]) -> int | None:
    """The id of the token with a role, as the folder names it or as it is usual."""
    said = self.tokenizer.get(f'{role}_token')
    named = said.get('content') if isinstance(said, Mapping) else said
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
    said = {role: _one(self.model.get(f'{role}_token_id')) for role in ('pad', 'eos', 'bos')}
    eos = _first(token['eos'], token['sep'], said['eos'], token['bos'], token['pad'], token['unk'])
    if eos is None:
      raise UserError(
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
    return _one(self.model.get('decoder_start_token_id'))


def _first(*ids: int | None) -> Any:
  return next((i for i in ids if i is not None), None)


def _one(ids: Any) -> int | None:
  """The first of several, or the only one."""
  return (ids[0] if ids else None) if isinstance(ids, list) else ids


def _json(path: Path) -> dict[str, Any]:
  try:
    found = json.loads(path.read_text(encoding='utf-8'))
  except FileNotFoundError:
    return {}
  except (OSError, ValueError) as error:
    raise UserError(f'{path} cannot be read: {error}') from error
  return found if isinstance(found, dict) else {}
