"""Attention, predictions, losses and parameters of a model for one text, pair of texts or image."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from t2x.data import Tokenizer
from t2x.layers import Tokens
from t2x.look.anatomy import Side, class_logits, records_attention, sides
from t2x.look.attention import (
  Attention,
  Grid,
  cross_statistics,
  grid_statistics,
  self_attention,
)
from t2x.look.inputs import Names, check_length, encoded, source_of_pair, target_ids
from t2x.look.lens import Lens, TokenLosses, logit_lens, masked_logits, token_losses
from t2x.look.loads import LOAD, ExpertLoad, load_of_input, records_load
from t2x.look.parameters import Neighbours, PositionVectors, neighbours, position_vectors
from t2x.look.patterns import InteractionMatrix, matrices_of
from t2x.models import Model
from t2x.parallel import Placed, module_of
from t2x.tasks.inspection import Inspection, in_order, source_readers

T = TypeVar('T')

__all__ = ['MAX_PATCHES', 'MAX_TOKENS', 'Look', 'look_at_image', 'look_at_pair', 'look_at_text']

# Maximum number of tokens of a text, and of an image, unless the caller sets another.
MAX_TOKENS, MAX_PATCHES = 128, 256
# Maximum number of queries and keys in the picture of a pattern.
_MATRIX_LENGTH = 256


@dataclasses.dataclass(frozen=True)
class Look:
  """Everything that is drawn about a model and one input.

  Attributes:
    attention: attention of each body, and cross-attention.
    lens: predictions after each layer; None without a head that predicts tokens or classes.
    losses: loss of each token; None if the model does not predict tokens.
    neighbours: nearest neighbours of the tokens of the input, for each embedding table.
    positions: vectors that position encodings add to embedded tokens.
    matrices: interaction matrix of each attention pattern.
    loads: load of the experts of each layer that has them.
    pixels: the image; None for other inputs.
    frames: the mel bands of a recording; None for other inputs.
    seconds: the length of the recording.
    drawings: pictures of predictions by title, such as boxes over the image.
    notes: what is missing, and why.
  """

  attention: tuple[Attention, ...] = ()
  lens: Lens | None = None
  losses: TokenLosses | None = None
  neighbours: tuple[Neighbours, ...] = ()
  positions: tuple[PositionVectors, ...] = ()
  matrices: tuple[InteractionMatrix, ...] = ()
  loads: tuple[ExpertLoad, ...] = ()
  pixels: UInt8[np.ndarray, 'height width channels'] | None = None
  frames: Float[np.ndarray, 'frames features'] | None = None
  seconds: float | None = None
  drawings: Mapping[str, UInt8[np.ndarray, 'rows columns 3']] = dataclasses.field(
    default_factory=dict
  )
  notes: tuple[str, ...] = ()


def look_at_text(
  model: Model | Placed,
  tokenizer: Tokenizer | None,
  text: str | np.ndarray,
  *,
  classes: Sequence[str] = (),
  max_tokens: int = MAX_TOKENS,
) -> Look:
  """Looks at a model of texts.

  Args:
    model: the model.
    tokenizer: its tokenizer; None for token ids.
    text: the text, or its token ids int32 [length].
    classes: names of the classes of a classifier.
    max_tokens: maximum number of tokens, including special tokens.

  Raises:
    UserError: the text is too long, empty, or the model has no tokenizer.
  """
  inspection = Inspection(model, tokenizer)
  ids = encoded(inspection, text)
  spec = module_of(model).spec
  check_length('the text', len(ids), max_tokens, spec.max_length)
  names = Names(tokenizer, classes)
  parts, notes = _parts(model)
  logits, recorded = _outputs(inspection, parts, notes, ids[None])
  labels = names.tokens(ids)
  is_causal = spec.is_causal(len(ids))
  predicts_tokens = spec.outputs == {'token logits'}
  targets = [*labels[1:], ''] if is_causal else labels
  lens = None
  if '' in parts and spec.outputs != {'vectors'}:
    of_row = class_logits(model) is not None
    lens = logit_lens(
      model,
      parts[''],
      in_order_of_row(recorded, 'hidden'),
      ['row'] if of_row else labels,
      targets if predicts_tokens else [''] * (1 if of_row else len(labels)),
      names.token if predicts_tokens else names.label,
    )
  return Look(
    _text_attention(recorded, labels, names.separators(ids)),
    lens,
    _text_losses(model, tokenizer, ids, logits[0], names) if predicts_tokens else None,
    _present(neighbours('', part.embedding, ids, names.token) for part in parts.values()),
    _positions(parts, {'': ids}),
    _matrices(parts),
    load_of_input(model, recorded),
    notes=tuple(notes),
  )


def look_at_pair(
  model: Model | Placed,
  tokenizer: Tokenizer | None,
  source: str | np.ndarray,
  target: str | Sequence[int],
  *,
  pixels: UInt8[np.ndarray, 'height width channels'] | None = None,
  seconds: float | None = None,
  start: Sequence[int] | None = None,
  max_tokens: int | None = None,
) -> Look:
  """Looks at an encoder-decoder that reads the source and, by teacher forcing, predicts the target.

  Args:
    model: the model.
    tokenizer: its tokenizer; None for token ids.
    source: the source text, its token ids int32 [length], or an image or frames of sound, prepared as in training.
    target: the target text, or the token ids to predict, including the end of the text.
    pixels: the image to show, if the source is one.
    seconds: the length of the sound, if the source is one.
    start: ids before the target in the decoder's input; None: those of the tokenizer.
    max_tokens: maximum number of tokens on each side; None: `MAX_TOKENS`, and `MAX_PATCHES` of an image.

  Raises:
    UserError: a side is too long or empty, or the model has no tokenizer.
  """
  inspection = Inspection(model, tokenizer)
  names, target_names = Names(tokenizer), Names(tokenizer and tokenizer.target)
  before, labels = target_ids(tokenizer, target, start)
  spec, is_text = module_of(model).spec, pixels is None and seconds is None
  parts, notes = _parts(model)
  inputs, keys = source_of_pair(inspection, parts.get('encoder'), source, is_text, seconds)
  most = max_tokens or (MAX_TOKENS if is_text else MAX_PATCHES)
  check_length('the source', len(keys[0]), most, spec.first.max_length)
  first = len(before) - 1
  check_length('the target', first + len(labels), max_tokens or MAX_TOKENS, spec.max_length)
  read, predicted = np.array([[*before, *labels[:-1]], [*before[1:], *labels]], np.int32)
  logits, recorded = _outputs(inspection, parts, notes, inputs[None], read[None])
  texts, lens = (target_names.tokens(read), target_names.tokens(predicted)), None
  if 'decoder' in parts:
    hidden = in_order_of_row(recorded, 'hidden', 'decoder')
    lens = logit_lens(model, parts['decoder'], hidden, *texts, target_names.token)
  context = 'the source and the target tokens before it'
  losses = token_losses(logits[0, first:], predicted[first:], texts[1][first:], context)
  own: dict[str, Any] = {'encoder': (inputs, names.token)} if is_text else {}
  own |= {'decoder': (predicted, target_names.token)}
  tables = [neighbours(side, parts[side].embedding, *own[side]) for side in own if side in parts]
  return Look(
    _pair_attention(recorded, model, keys, (target_names, read, predicted)),
    lens,
    losses,
    _present(tables),
    _positions(parts, {'encoder': inputs, 'decoder': read}),
    _matrices(parts),
    load_of_input(model, recorded),
    pixels=pixels,
    frames=None if seconds is None else inputs,
    seconds=seconds,
    notes=tuple(notes),
  )


def look_at_image(
  model: Model | Placed,
  image: Float[np.ndarray, 'height width channels'],
  pixels: UInt8[np.ndarray, 'height width channels'],
  *,
  label: str = '',
  classes: Sequence[str] = (),
  max_tokens: int = MAX_PATCHES,
) -> Look:
  """Looks at a model of images.

  Args:
    model: the model.
    image: the input, normalised as in training.
    pixels: the image to show, of the same height and width.
    label: its class; '' if it is not known.
    classes: names of the classes.
    max_tokens: maximum number of patches and extra tokens.

  Raises:
    UserError: the image has too many patches.
  """
  parts, notes = _parts(model)
  row = module_of(model).embedding(jnp.asarray(image[None]))[1] if parts else None
  num_tokens = 0 if row is None else row.positions.shape[1]
  check_length('the image', num_tokens, max_tokens, None, 'patches and extra tokens')
  _, recorded = _outputs(Inspection(model, None), parts, notes, image[None])
  grids = parts[''].grids(image) if '' in parts else []
  lens = None
  if '' in parts and class_logits(model) is not None:
    hidden, names = in_order_of_row(recorded, 'hidden'), Names(None, classes)
    lens = logit_lens(model, parts[''], hidden, ['image'], [label], names.label)
  return Look(
    _image_attention(recorded, grids),
    lens,
    positions=_positions(parts, {'': image}),
    matrices=_matrices(parts, row),
    loads=load_of_input(model, recorded),
    pixels=pixels,
    notes=tuple(notes),
  )


def _parts(model: Model | Placed) -> tuple[dict[str, Side], list[str]]:
  parts = sides(model)
  notes = []
  if not parts:
    notes.append(
      f'{type(module_of(model)).__name__} is not a model class of t2x: no predictions, embeddings and positions'
    )
  return parts, notes


def _outputs(
  inspection: Inspection,
  parts: Mapping[str, Side],
  notes: list[str],
  inputs: np.ndarray,
  targets: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Returns outputs and recorded arrays; adds a note if the layers do not record their attention."""
  record = {'hidden', 'probabilities'}
  if not any(records_attention(part.body) for part in parts.values()):
    record = {'hidden'}
    notes.append('No attention maps: the layers have no attention probabilities.')
  if records_load(inspection.model):
    record |= LOAD
  return inspection.outputs(inputs, targets, frozenset(record))


def in_order_of_row(recorded: Mapping[str, np.ndarray], name: str, side: str = '') -> list[Any]:
  """Returns the recorded arrays of the first row, first layer first; see `in_order`."""
  start = f'{side}.' if side else ''
  own = {key.removeprefix(start): a for key, a in recorded.items() if key.startswith(start)}
  return [layer[0] for layer in in_order(own, name)]


def _sublayers(recorded: Mapping[str, np.ndarray], side: str = '') -> list[str]:
  """Returns the names of the sublayers of a side that recorded probabilities."""
  own = (name for name in recorded if name.startswith(side))
  matches = (re.search(r'blocks\.\d+\.(.+)\.probabilities$', name) for name in own)
  return list(dict.fromkeys(match[1] for match in matches if match))


def _text_attention(
  recorded: Mapping[str, np.ndarray],
  labels: Sequence[str],
  separators: np.ndarray,
  side: str = '',
  readers: Collection[str] = (),
) -> tuple[Attention, ...]:
  """Returns the self-attention of each kind of sublayer of a side: all sublayers except `readers`."""
  results = []
  for sublayer in _sublayers(recorded, side):
    layers = in_order_of_row(recorded, f'{sublayer}.probabilities', side)
    name = f'{side} self-attention'.strip()
    if sublayer != 'mixer':
      name += f' ({sublayer})'
    if layers and sublayer not in readers:
      results.append(self_attention(name, layers, labels, separators))
  return tuple(results)


def _pair_attention(
  recorded: Mapping[str, np.ndarray],
  model: Model | Placed,
  source: tuple[Sequence[str], np.ndarray, Sequence[Grid]],
  target: tuple[Names, np.ndarray, np.ndarray],
) -> tuple[Attention, ...]:
  """Returns the attention of each sublayer of the decoder to the source, and the self-attention of both sides."""
  (keys, separators, grids), (target_names, read, predicted) = source, target
  grid = grids[-1] if grids else None
  readers = source_readers(model, 'decoder')
  queries = tuple(target_names.tokens(predicted))
  of_source = [name for name in _sublayers(recorded, 'decoder') if name in readers]
  cross = []
  for sublayer in of_source:
    layers = tuple(in_order_of_row(recorded, f'{sublayer}.probabilities', 'decoder'))
    if (size := layers[0].shape[-1]) != len(
      keys
    ):  # The encoder merges tokens, or they have no grid.
      keys, separators, grid = [f'token {i + 1}' for i in range(size)], np.zeros(size, bool), None
    statistics = tuple(cross_statistics(layer, separators) for layer in layers)
    name = 'cross-attention' if len(of_source) == 1 else f'cross-attention ({sublayer})'
    cross.append(Attention(name, queries, tuple(keys), layers, statistics, grid))
  inputs = target_names.tokens(read)
  own = target_names.separators(read)
  return (
    *cross,
    *(
      _text_attention(recorded, keys, separators, 'encoder')
      if not grids
      else _image_attention(recorded, grids, 'encoder')
    ),
    *_text_attention(recorded, inputs, own, 'decoder', readers),
  )


def _image_attention(
  recorded: Mapping[str, np.ndarray], grids: Sequence[Grid], side: str = ''
) -> tuple[Attention, ...]:
  """Returns self-attention between patches, one result for each number of tokens (stages differ)."""
  of_size = {grid.num_tokens: grid for grid in grids}
  results = []
  for sublayer in _sublayers(recorded, side):
    layers = in_order_of_row(recorded, f'{sublayer}.probabilities', side)
    sizes = list(dict.fromkeys(layer.shape[-1] for layer in layers))
    for size in sizes:
      own = tuple(layer for layer in layers if layer.shape[-1] == size)
      name = f'{side} self-attention'.strip() + (f', {size} tokens' if len(sizes) > 1 else '')
      grid = of_size.get(size)
      if grid is not None:
        statistics = tuple(grid_statistics(layer, grid) for layer in own)
        results.append(Attention(name, grid.names, grid.names, own, statistics, grid))
      else:
        numbers = [f'token {i + 1}' for i in range(size)]
        results.append(self_attention(name, own, numbers, np.zeros(size, bool)))
  return tuple(results)


def _text_losses(
  model: Model | Placed,
  tokenizer: Tokenizer | None,
  ids: np.ndarray,
  logits: np.ndarray,
  names: Names,
) -> TokenLosses | None:
  if module_of(model).spec.is_causal(len(ids)):
    if len(ids) < 2:
      return None
    return token_losses(logits[:-1], ids[1:], names.tokens(ids[1:]), 'the tokens before it')
  if tokenizer is None or tokenizer.mask_id is None:
    return None
  places = np.flatnonzero(~tokenizer.special[ids] | (ids == tokenizer.unk_id))
  if not len(places):
    return None
  masked = masked_logits(model, ids, places, tokenizer.mask_id)
  context = 'all other tokens, with only this token masked'
  return token_losses(masked, ids[places], names.tokens(ids[places]), context)


def _positions(
  parts: Mapping[str, Side], inputs: Mapping[str, np.ndarray]
) -> tuple[PositionVectors, ...]:
  results = []
  for side, part in parts.items():
    embedded, tokens = part.embedded(jnp.asarray(inputs[side][None]))
    for encoding in part.encodings:
      name = type(encoding).__name__ + (f' of the {side}' if side else '')
      results.append(position_vectors(name, encoding, embedded.shape[-1], tokens))
  return _present(results)


def _matrices(
  parts: Mapping[str, Side], tokens: Tokens | None = None
) -> tuple[InteractionMatrix, ...]:
  if tokens is not None:
    length = tokens.positions.shape[1]
  else:
    limits = [part.body.max_length for part in parts.values() if part.body.max_length]
    length = min([_MATRIX_LENGTH, *limits])
  return matrices_of({side: part.body.patterns for side, part in parts.items()}, length, tokens)


def _present(results: Iterable[T | None]) -> tuple[T, ...]:
  return tuple(result for result in results if result is not None)
