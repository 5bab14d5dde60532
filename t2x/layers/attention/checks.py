"""Errors of attention layers whose parts and settings do not fit together."""

from collections.abc import Mapping

from t2x.base.errors import UserError
from t2x.layers.attention.key_values import KeyValues
from t2x.layers.interfaces import Scores
from t2x.layers.positions.encoding import PositionEncoding


def check_encoding(
  name: str,
  encoding: PositionEncoding,
  scores: Scores,
  reads: frozenset[str],
  key_values: KeyValues | None,
) -> None:
  """Raises UserError if parts of the attention `name` do not support an encoding; `reads`: inputs of the scores."""
  own, unread = type(encoding).__name__, encoding.mixer_hooks & {'address', 'rotate'}
  if encoding.reads_content:
    unread = unread | encoding.mixer_hooks & {'scores'}
  if key_values is not None and unread - {'rotate'}:
    raise UserError(
      f'{own} reads the projection of keys, which {type(key_values).__name__} replaces in {name}: use RoPE, a bias or '
      'no encoding'
    )
  if unread and not {'q', 'k'} <= reads:
    raise UserError(
      f'{own} works on queries and keys ({", ".join(sorted(unread))}), which {type(scores).__name__} in {name} does '
      'not read: use another encoding, or scores that read both'
    )
  if 'pattern' in reads and 'scores' in encoding.hooks:
    raise UserError(
      f'{own} adds terms to the scores, which the steps of {type(scores).__name__} in {name} would '
      'leave out: use RoPE or no encoding'
    )
  if encoding.num_terms > 1 and 'scale' not in reads:
    raise UserError(
      f'{own} divides scores by the square root of its {encoding.num_terms} terms, but {type(scores).__name__} in '
      f'{name} reads no scale: use DotProductScores or another encoding'
    )


def check_source_parts(name: str, scores: Scores, reads: frozenset[str], values: object) -> None:
  """Raises UserError if the scores or the part `values` of the attention `name` cannot be those of a source."""
  if 'positions' in reads:
    raise UserError(
      f'{name} cannot attend to a source with {type(scores).__name__}, which score positions of one sequence: use '
      'MultiHeadAttention with DotProductScores for cross-attention'
    )
  if values is not None:
    raise UserError(
      f'{name}.values cannot mix the values of a source, because only values of the same tokens can be '
      'mixed across layers: leave it out of Block.cross'
    )


def check_cacheable(part: KeyValues) -> None:
  """Raises UserError if a cache cannot hold the keys and values of a part."""
  if not part.cacheable:
    raise UserError(
      f'{type(part).__name__} computes keys from several tokens and cannot decode token by token: leave out '
      'evaluations that generate'
    )


def check_length(part: Scores | PositionEncoding, length: int) -> None:
  """Raises UserError if a row is longer than the positions of a part."""
  if part.max_length is not None and length > part.max_length:
    raise UserError(
      f'a row of {length} tokens is longer than the {part.max_length} positions of '
      f'{type(part).__name__}: shorten the rows or raise its number of positions'
    )


def check_settings(
  name: str,
  scores: Scores,
  reads: frozenset[str],
  scale: float | None,
  queries: object,
  memory: object,
) -> None:
  """Raises UserError if the scores do not read the scale, the queries or the memory that are set."""
  for setting, value, read in (('scale', scale, 'scale'), ('queries', queries, 'q')):
    if value is not None and read not in reads:
      raise UserError(f'{name}.{setting} is not read by {type(scores).__name__}: leave it out')
  if memory is not None and 'pattern' in reads:
    raise UserError(
      f'{name}.memory has keys that the steps of {type(scores).__name__} would leave out: leave it out'
    )


def check_replaced(
  name: str, reads: frozenset[str], key_values: object, settings: Mapping[str, object]
) -> None:
  """Raises UserError if `key_values` replaces what a setting is for, or if the scores read no keys."""
  if key_values is None:
    return
  for setting, value in settings.items():
    if value is not None:
      raise UserError(
        f'{name}.{setting} has no effect on the keys and values of {name}.key_values: leave one of them out'
      )
  if 'k' not in reads:
    raise UserError(
      f'{name}.key_values computes keys, which {name}.scores do not read: leave it out'
    )
