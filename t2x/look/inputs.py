"""Token ids of an input, names of tokens and classes, and the maximum length."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.data import Tokenizer
from t2x.look.anatomy import Side
from t2x.look.attention import Grid
from t2x.tasks.inspection import Inspection


class Names:
  """Names of tokens and classes; ids without a tokenizer."""

  def __init__(self, tokenizer: Tokenizer | None, classes: Sequence[str] = ()):
    self.tokenizer, self.classes = tokenizer, classes

  def token(self, i: int) -> str:
    """Returns the piece of a token id."""
    if self.tokenizer is None:
      return str(i)
    return self.tokenizer.pieces([i])[0] if 0 <= i < self.tokenizer.vocab_size else f'<{i}>'

  def tokens(self, ids: np.ndarray) -> list[str]:
    """Returns the pieces of token ids."""
    return [self.token(int(i)) for i in ids]

  def label(self, i: int) -> str:
    """Returns the name of a class."""
    return self.classes[i] if i < len(self.classes) else str(i)

  def separators(self, ids: np.ndarray) -> np.ndarray:
    """Returns whether each token is an end of text or a special token of the template except the first."""
    if self.tokenizer is None:
      return np.zeros(len(ids), bool)
    added = [item for item, _ in self.tokenizer.pair[1:] if not isinstance(item, str)]
    return np.isin(ids, [self.tokenizer.eos_id, *added])


def encoded(inspection: Inspection, text: str | np.ndarray) -> np.ndarray:
  """Returns the token ids of a text, as the model reads it."""
  if isinstance(text, str):
    return inspection.encode([text])[0][0]
  return np.asarray(text, np.int32)


def source_of_pair(
  inspection: Inspection,
  side: Side | None,
  source: str | np.ndarray,
  is_text: bool,
  seconds: float | None = None,
) -> tuple[np.ndarray, tuple[Sequence[str], np.ndarray, Sequence[Grid]]]:
  """Returns the input of an encoder; and the names of its tokens, which of them are separators, and the
  grids of the stages.

  Args:
    inspection: the model and its tokenizer.
    side: the encoder; None for a model class that is not part of t2x.
    source: a text, token ids int32 [length], an image float32 [height, width, channels] or frames of sound float32
      [frames, features].
    is_text: whether it is a text.
    seconds: the length of sound, whose tokens are named by their time; None: no sound.
  """
  if is_text:
    ids, names = encoded(inspection, source), Names(inspection.tokenizer)
    return ids, (names.tokens(ids), names.separators(ids), ())
  assert isinstance(source, np.ndarray)
  if side is not None and seconds is not None:
    size = side.embedded(jnp.asarray(source[None]))[1].positions.shape[1]
    times = [f'{i * seconds / size:.2f} s' for i in range(size)]
    return source, (times, np.zeros(size, bool), ())
  grids = [] if side is None else side.grids(source)
  keys = grids[-1].names if grids else ()
  return source, (keys, np.zeros(len(keys), bool), grids)


def target_ids(
  tokenizer: Tokenizer | None, target: str | Sequence[int], start: Sequence[int] | None
) -> tuple[list[int], list[int]]:
  """Returns the ids before the target in the decoder's input, and the ids to predict."""
  if tokenizer is None:
    if start is None or isinstance(target, str):
      raise UserError('the model has no tokenizer: pass token ids, and the ids before the target')
    return list(start), list(target)
  before = [tokenizer.start_id, *tokenizer.before] if start is None else list(start)
  if isinstance(target, str):
    return before, [*tokenizer.target.encode(target), tokenizer.eos_id]
  return before, list(target)


def check_length(
  what: str, length: int, maximum: int, positions: int | None, unit: str = 'tokens'
) -> None:
  """Raises UserError if an input is longer than the maximum, or than the model's `positions`."""
  if positions is not None and length > positions:
    raise UserError(
      f'{what} has {length} tokens, but the model reads at most {positions}: shorten it'
    )
  if length > maximum:
    raise UserError(
      f'{what} has {length} {unit}, more than the maximum of {maximum}: shorten it, or raise --max-tokens '
      '(the size of the page grows with its square)'
    )
