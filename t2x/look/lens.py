"""Predictions of each layer, and the loss of each token.

The logit lens applies the final norm and the head to the residual stream after every layer (nostalgebraist 2020,
"interpreting GPT: the logit lens"). A masked language model predicts each token with only this token masked
(Salazar et al. 2020, https://arxiv.org/abs/1910.14659).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from t2x.layers import Tokens
from t2x.look.anatomy import Side, class_logits
from t2x.models import Model
from t2x.parallel import Placed, runs_model, whole_rows
from t2x.tasks.prediction import on_devices

__all__ = ['Lens', 'TokenLosses']

# Number of predictions per token and layer.
TOP = 5
# Rows of a batch in which one token each is masked.
_ROWS = 16


@dataclasses.dataclass(frozen=True)
class Lens:
  """The most probable outputs at each position after each layer.

  Attributes:
    positions: labels of the positions; one position if the outputs are classes of the row.
    targets: the correct output at each position; '' if there is none.
    ids: ids of tokens or classes, most probable first.
    probabilities: their probabilities.
    names: name of each id that occurs.
  """

  positions: tuple[str, ...]
  targets: tuple[str, ...]
  ids: Int[np.ndarray, 'layers positions top']
  probabilities: Float[np.ndarray, 'layers positions top']
  names: dict[int, str]


@dataclasses.dataclass(frozen=True)
class TokenLosses:
  """Cross-entropy of each predicted token.

  Attributes:
    tokens: the predicted tokens.
    losses: -log probability in nats.
    ranks: number of tokens of the vocabulary that are more probable.
    context: what the model reads to predict a token.
  """

  tokens: tuple[str, ...]
  losses: Float[np.ndarray, ' tokens']
  ranks: Int[np.ndarray, ' tokens']
  context: str


def logit_lens(
  model: Model | Placed,
  side: Side,
  hidden: Sequence[Float[np.ndarray, 'length width']],
  positions: Sequence[str],
  targets: Sequence[str],
  name_of: Callable[[int], str],
) -> Lens:
  """Returns the predictions after each layer whose vectors have the width of the head's input.

  Args:
    model: the model, which predicts tokens, classes of tokens or classes of the row.
    side: the side that the head reads.
    hidden: the residual stream after each layer.
    positions: label of each position, or of the row.
    targets: correct output of each position or of the row; '' if there is none.
    name_of: returns the name of a token or class.
  """
  fitting = np.stack([x for x in hidden if x.shape[-1] == side.body.output_dim])
  ids, probabilities = map(np.asarray, _predictions(model, side, fitting))
  names = {int(i): name_of(int(i)) for i in np.unique(ids)}
  return Lens(tuple(positions), tuple(targets), ids, probabilities, names)


def _predictions(model: Model | Placed, side: Side, hidden: object) -> tuple[Any, Any]:
  """Returns ids and probabilities [layers, positions, TOP] of hidden vectors [layers, length, width]."""

  @runs_model
  def predictions(model, hidden):
    classify = class_logits(model)

    def layer(x):
      x = side.normalised(x[None])
      logits = model.logits(x)[0] if classify is None else classify(x)
      probabilities = jax.nn.softmax(logits.astype(jnp.float32))
      best, ids = jax.lax.top_k(probabilities, min(TOP, logits.shape[-1]))
      return ids, best

    return jax.lax.map(layer, hidden)

  return jax.jit(predictions)(whole_rows(model, batch=False), hidden)


def token_losses(
  logits: Float[np.ndarray, 'tokens vocab'],
  labels: Int[np.ndarray, ' tokens'],
  names: Sequence[str],
  context: str,
) -> TokenLosses:
  """Returns the loss of each label under the logits; see `TokenLosses`."""
  z = logits.astype(np.float64)
  z -= z.max(axis=-1, keepdims=True)
  own = np.take_along_axis(z, labels[:, None], axis=-1)
  losses = np.log(np.exp(z).sum(axis=-1)) - own[:, 0]
  return TokenLosses(tuple(names), losses, (z > own).sum(axis=-1), context)


def masked_logits(
  model: Model | Placed,
  ids: Int[np.ndarray, ' length'],
  places: Int[np.ndarray, ' tokens'],
  mask_id: int,
) -> Float[np.ndarray, 'tokens vocab']:
  """Returns the logits of the tokens at `places`, each predicted with only this token masked.

  Args:
    model: a masked language model.
    ids: the row.
    places: indices into the row.
    mask_id: id of the mask token.
  """
  parts = []
  for start in range(0, len(places), _ROWS):
    # A last batch of the same size, so that one program is compiled.
    own = np.resize(places[start : start + _ROWS], min(_ROWS, len(places)))
    rows = np.tile(ids, (len(own), 1))
    rows[np.arange(len(own)), own] = mask_id
    parts.append(on_devices(_logits_at, whole_rows(model), rows, own))
  return np.concatenate(parts)[: len(places)]


@jax.jit
@runs_model
def _logits_at(model, rows, places):
  tokens = Tokens.row(rows.shape[1], segments=jnp.ones(rows.shape, jnp.int32), right_padded=True)
  x = model.hidden(rows, tokens=tokens).x
  return model.logits(jnp.take_along_axis(x, places[:, None, None], axis=1))[:, 0]
