"""Logits and intermediate arrays of a model for texts, token ids or other arrays, such as images."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.base.errors import UserError
from t2x.data import Tokenizer
from t2x.layers import Sublayer, Tokens
from t2x.layers.marks import Marks
from t2x.models import Model, Output
from t2x.parallel.placed import Placed, module_of, runs_model, whole_rows
from t2x.tasks.prediction import on_devices
from t2x.tasks.text import pad_prompts

Texts = str | Sequence[str]
# Texts, or token ids int32 [batch, length].
Rows = Texts | np.ndarray


@dataclasses.dataclass(frozen=True)
class Inspection:
  """Runs a model on a batch and returns its logits and intermediate arrays.

  Texts are strings, one row each, which are padded on the right to the longest one, or token ids int32
  [batch, length]. Other inputs are arrays, such as images float32 [batch, height, width, channels], normalised as in
  training.

  Attributes:
    model: the module, with its parameters.
    tokenizer: the fitted tokenizer; None for image models.
    marks: marks of tokens that patterns of a language model read.
  """

  model: Model | Placed
  tokenizer: Tokenizer | None
  marks: Marks = Marks()

  def encode(self, texts: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Converts texts to token ids and segments (1 for tokens, 0 for padding), int32 [batch, length].

    Raises:
      UserError: the model has no tokenizer.
    """
    if isinstance(texts, np.ndarray):
      return texts, np.ones_like(texts)
    spec, tokenizer = module_of(self.model).spec, self._text_tokenizer()
    if spec.is_encoder_decoder:
      rows = [[*tokenizer.before, *tokenizer.encode(t), tokenizer.eos_id] for t in as_list(texts)]
    elif spec.is_causal(2):
      rows = [tokenizer.prompt(text) for text in as_list(texts)]
    else:
      rows = [tokenizer.encode_pair(text).ids.tolist() for text in as_list(texts)]
    return self._padded(rows)

  def encode_targets(self, texts: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Converts texts to token ids and segments for the decoder of an encoder-decoder."""
    if isinstance(texts, np.ndarray):
      return texts, np.ones_like(texts)
    tokenizer = self._text_tokenizer()
    target, begin = tokenizer.target, [tokenizer.start_id, *tokenizer.before]
    return self._padded([[*begin, *target.encode(text)] for text in as_list(texts)])

  def outputs(
    self,
    inputs: Any,
    targets: Rows | None = None,
    record: frozenset[str] = frozenset(),
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns logits, and recorded arrays by name.

    Args:
      inputs: texts, token ids or other arrays, such as images.
      targets: prefixes of the target texts or token ids for the decoder of an encoder-decoder; None: empty
        prefixes.
      record: names of the intermediate arrays to return.
    """
    spec = module_of(self.model).spec
    if not spec.is_encoder_decoder and targets is not None:
      raise UserError(
        f'@{type(module_of(self.model)).__name__} reads {", ".join(spec.inputs)}: omit the targets'
      )
    first = spec.first
    encoded = (
      self.encode(inputs) if first.kind == 'ids' else (np.asarray(inputs, first.dtype), None)
    )
    run: Callable[..., Any] = _array_outputs
    arrays: tuple[Any, ...] = encoded
    if spec.is_encoder_decoder:
      prefixes = [''] * len(encoded[0]) if targets is None else targets
      run, arrays = _pair_outputs, (*encoded, *self.encode_targets(prefixes))
    elif first.kind == 'ids':
      run = functools.partial(_text_outputs, marks=self.marks)
    run = functools.partial(run, record=record)
    logits, recorded = on_devices(run, whole_rows(self.model), *arrays)
    by_repeat = {name: np.moveaxis(array, 0, 1) for name, array in recorded.items()}
    return np.asarray(logits, np.float32), by_repeat

  def layers(
    self, name: str, inputs: object, targets: Rows | None = None, side: str = 'decoder'
  ) -> list[np.ndarray]:
    """Returns a recorded array of each layer, float32 [batch, ...], first layer first.

    Args:
      name: end of the name: 'hidden', 'mixer.probabilities', 'cross.probabilities'.
      inputs: see `outputs`.
      targets: see `outputs`.
      side: 'encoder' or 'decoder' of an encoder-decoder.

    Raises:
      UserError: no layer records it.
    """
    _, recorded = self.outputs(inputs, targets, frozenset({name.rpartition('.')[2]}))
    layers = in_order(self._side(recorded, side), name)
    if not layers:
      raise UserError(f"no layer of the model records '{name}'")
    return layers

  def _side(self, recorded: Mapping[str, Any], side: str) -> Mapping[str, Any]:
    if not module_of(self.model).spec.is_encoder_decoder:
      return recorded
    start = f'{side}.'
    return {n.removeprefix(start): a for n, a in recorded.items() if n.startswith(start)}

  def _text_tokenizer(self) -> Tokenizer:
    if self.tokenizer is None:
      raise UserError('the model has no tokenizer: pass token ids, int32 [batch, length]')
    return self.tokenizer

  def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    ids, lengths = pad_prompts(rows, self._text_tokenizer().pad_id, multiple=1)
    return ids, (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int32)


@functools.partial(jax.jit, static_argnames='record')
@runs_model
def _array_outputs(model, inputs, _, *, record):
  out: Output = model(inputs, record=record)
  return out.x, _by_row(out.recorded)


@functools.partial(jax.jit, static_argnames=('record', 'marks'))
@runs_model
def _text_outputs(model, ids, segments, *, record, marks):
  marked = marks.of_rows(ids, segments)
  tokens = Tokens.row(ids.shape[1], segments=segments, right_padded=True, marks=marked)
  out: Output = model.hidden(ids, tokens=tokens, record=record)
  if 'class logits' in model.spec.outputs:
    return model.head.classify(out.x, segments, None), _by_row(out.recorded)
  if 'vectors' in model.spec.outputs:
    return model.head(out.x, model.embedding), _by_row(out.recorded)
  return model.logits(out.x), _by_row(out.recorded)


@functools.partial(jax.jit, static_argnames='record')
@runs_model
def _pair_outputs(model, source, source_segments, target, segments, *, record):
  out: Output = model.hidden(
    source,
    target,
    source_tokens=None
    if source_segments is None
    else Tokens.row(source.shape[1], segments=source_segments, right_padded=True),
    target_tokens=Tokens.row(target.shape[1], segments=segments, right_padded=True),
    record=record,
  )
  return model.logits(out.x), _by_row(out.recorded)


def _by_row(recorded: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
  """Returns arrays [batch, repeats, ...] of those that stacks recorded, [repeats, batch, ...]."""
  return {name: jnp.moveaxis(array, 1, 0) for name, array in recorded.items()}


def in_order(recorded: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
  """Returns the recorded arrays of one name, first layer first.

  Args:
    recorded: arrays [repeats, ...] by '[stages.S.]blocks.I.NAME', from `Stack`.
    name: the end of the names.
  """
  layers = []
  for key, array in recorded.items():
    match = re.fullmatch(rf'(?:stages\.(\d+)\.)?blocks\.(\d+)\.{re.escape(name)}', key)
    if match:
      stage, block = int(match[1] or 0), int(match[2])
      layers += [((stage, repeat, block), layer) for repeat, layer in enumerate(array)]
  return [np.asarray(layer, np.float32) for _, layer in sorted(layers, key=lambda item: item[0])]


def as_list(texts: Texts) -> list[str]:
  """Returns a list of one or several texts."""
  return [texts] if isinstance(texts, str) else list(texts)


def source_readers(model: object, side: str) -> frozenset[str]:
  """Returns the names of the sublayers of a side that attend to a source, such as 'cross' in `Block`."""
  names = set()
  for path, part in nnx.iter_modules(module_of(model)):
    # The sublayer '' of a block has no level in the names of recorded arrays.
    name = '.'.join(str(key) for key in path if key != '')
    match = re.match(rf'{side}\..*?\bblocks\.\d+\.(.+)', name)
    if match and isinstance(part, Sublayer) and 'source' in part.reads:
      names.add(match[1])
  return frozenset(names)
