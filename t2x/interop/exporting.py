"""Export of t2x models as Hugging Face model folders."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from t2x.base.errors import UserError
from t2x.interop.families import FAMILIES
from t2x.interop.family import Family
from t2x.interop.rules import Table
from t2x.interop.safetensors import write_tensors
from t2x.layers import (
  XLA,
  Auto,
  Blockwise,
  Dense,
  FactorisedEmbedding,
  PallasMHA,
  Splash,
  TokenEmbedding,
)
from t2x.layers.arrays import named_leaves

__all__ = ['export']

# Attributes and attention kernels of t2x that do not change the outputs of a model at inference.
IGNORED_ATTRIBUTES = {
  'chunk',
  'dropout_rate',
  'final_dropout',
  'input_dropout',
  'remat',
  'stochastic_depth',
  'unroll',
}
LABELS = ('id2label', 'label2id')
KERNELS = (Auto, Blockwise, Dense, PallasMHA, Splash, XLA)

Build = Callable[[str], Callable[..., nnx.Module]]


def export(
  model: nnx.Module,
  build: Build,
  folder: Path,
  arrays: Callable[[str], np.ndarray],
  model_type: str | None = None,
  extra: Mapping[str, Any] | None = None,
  kept: Mapping[str, np.ndarray] | None = None,
) -> Family:
  """Writes config.json and safetensors files, one tensor at a time, without the padding of vocabularies.

  Args:
    model: the t2x model, or its shapes.
    build: maps the gin text of a model to its builder; used to check that config.json describes `model`.
    folder: the output folder.
    arrays: maps the name of a t2x parameter to its value.
    model_type: the family to export as; None: a family whose config.json describes `model`, that of `extra` first.
    extra: additional fields of config.json: those of an imported folder are kept unchanged if they describe `model`.
    kept: tensors without effect in t2x by name, which are written if the family has them.

  Returns:
    The family.

  Raises:
    UserError: no family matches the model; lists the differences from the closest family.
  """
  model = _without_padding(model)
  extra = dict(extra or {})
  family, config = _match_family(model, build, model_type, extra.get('model_type'))
  _check_padding(config, extra)
  leaves = {name: tuple(leaf.shape) for name, leaf in named_leaves(model)}
  table = Table(family.rules, leaves)
  prefix = family.prefix if config['architectures'] == [family.bare] else ''
  specs = {
    name.removeprefix(prefix): (table.tensor_shape(name), np.float32) for name in table.tensors
  }
  more = family.kept_of(kept or {})
  specs |= {name: (tensor.shape, np.float32) for name, tensor in more.items()}
  cache: dict[str, np.ndarray] = {}
  cached_rule = None

  def tensor(name: str) -> np.ndarray:
    nonlocal cached_rule
    if name in more:
      return np.asarray(more[name], np.float32)
    entry, slices = table.tensors[prefix + name], []
    if entry.rule is not cached_rule:  # The layers of a rule are consecutive.
      cache.clear()
      cached_rule = entry.rule
    for parameter, index in entry.parts:
      if parameter not in cache:
        cache[parameter] = arrays(parameter)[tuple(map(slice, leaves[parameter]))]
      slices.append(cache[parameter][index])
    return entry.layout.join(slices)

  write_tensors(folder, specs, tensor)
  text = json.dumps(_contents(family, config, extra), indent=2, sort_keys=True)
  (folder / 'config.json').write_text(text + '\n', encoding='utf-8')
  return family


def _contents(
  family: Family, config: Mapping[str, Any], extra: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the contents of config.json: `extra` if it describes the same model as the fields of `config`."""
  if extra.get('model_type') == family.model_type and _same_model(family, config, extra):
    kept = {name: value for name, value in extra.items() if name != 'torch_dtype'}
    return kept | {name: config[name] for name in ('architectures', 'dtype')}
  if extra.get('model_type', family.model_type) != family.model_type:  # Fields of another family.
    extra = {name: v for name, v in extra.items() if name in LABELS or name.endswith('_token_id')}
  if len(extra.get('id2label') or ()) != config.get('num_labels', 0):  # Labels of another head.
    extra = {name: value for name, value in extra.items() if name not in LABELS}
  return family.json(config, extra)


def _same_model(family: Family, *configs: Mapping[str, Any]) -> bool:
  """Returns whether all contents of config.json describe the same model."""
  try:
    read = [family.read(fields, 'config.json') for fields in configs]
  except UserError:
    return False
  return len({(fields['architecture'], family.gin(fields)) for fields in read}) == 1


def _check_padding(config: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
  """Raises UserError if the positions of a model that depend on its padding id are those of another id."""
  own, other = config.get('pad_token_id'), extra.get('pad_token_id')
  if own is not None and other is not None and own != other:
    raise UserError(
      f'the model cannot be exported: positions of {config["model_type"]} start at the padding id '
      f'plus one, {own + 1} in '
      f'the model, but the padding id of the tokenizer is {other}: train it with offset = {other + 1}'
    )


def _without_padding(model: nnx.Module) -> nnx.Module:
  """Returns the shapes of a model whose vocabularies are not padded (`TokenEmbedding.vocab_multiple`)."""
  copy = jax.eval_shape(lambda: model)
  modules = [module for _, module in nnx.iter_modules(copy)]
  embeddings = [m for m in modules if isinstance(m, (TokenEmbedding, FactorisedEmbedding))]
  for module in modules:
    # Heads predict tokens of the text or the target, `spec.vocab_size`.
    size = module.vocab_size if module in embeddings else copy.spec.vocab_size
    for variable in vars(module).values():
      if isinstance(variable, nnx.Variable) and 'vocab' in variable.axes:
        leaf = variable.get_raw_value()
        shape = [
          min(n, size) if axis == 'vocab' else n
          for n, axis in zip(leaf.shape, variable.axes, strict=True)
        ]
        variable.set_raw_value(jax.ShapeDtypeStruct(shape, leaf.dtype))
  for embedding in embeddings:
    embedding.vocab_multiple = 1
  return copy


def _heads_differ(model: nnx.Module) -> bool:
  """Returns whether layers of one stack have different numbers of heads."""
  counts: dict[tuple[str, str], set[int]] = {}
  for name, leaf in named_leaves(model):
    if match := re.fullmatch(r'(.*)\.blocks\.\d+\.(.*)\.out\.kernel', name):
      counts.setdefault((match[1], match[2]), set()).add(leaf.shape[1])
  return any(len(numbers) > 1 for numbers in counts.values())


def _match_family(
  model: nnx.Module, build: Build, model_type: str | None, preferred: str | None
) -> tuple[Family, dict[str, Any]]:
  """Returns the family that rebuilds `model` from its config.json, and that config.json.

  Args:
    model, build, model_type: see `export`.
    preferred: the family to try first if `model_type` is None.
  """
  if model_type is not None and model_type not in FAMILIES:
    names = ', '.join(sorted(FAMILIES))
    raise UserError(f'unknown model family {model_type!r}; must be one of: {names}')
  ordered = sorted(FAMILIES.values(), key=lambda family: family.model_type != preferred)
  candidates = [FAMILIES[model_type]] if model_type else ordered
  nearest: tuple[str, list[str]] | None = None
  for family in candidates:
    try:
      architecture, fields = family.fields(model)
      fields |= {'architectures': [architecture], 'model_type': family.model_type}
      gin = family.gin(family.read(fields, 'the model'))
      rebuilt = jax.eval_shape(lambda gin=gin: build(gin)(rngs=nnx.Rngs(0)))
    except (
      AttributeError,
      ArithmeticError,
      LookupError,
      TypeError,
      ValueError,
      UserError,
    ) as error:
      if model_type:
        raise UserError(f'the model cannot be exported as {model_type}: {error}') from error
      continue
    differences = list(_differences(model, rebuilt))
    if not differences:
      return family, fields | {'dtype': 'float32'}
    if nearest is None or len(differences) < len(nearest[1]):
      nearest = family.model_type, differences
  if _heads_differ(model):
    raise UserError(
      'the model cannot be exported: its layers have different numbers of heads (t2x prune), which no '
      'family supports'
    )
  if nearest is None:
    raise UserError(
      f'the model cannot be exported: no family has its layers, only {", ".join(sorted(FAMILIES))} '
      'are supported'
    )
  lines = '\n  '.join(nearest[1][:8])
  raise UserError(
    f'the model cannot be exported: it differs from the closest family, {nearest[0]}:\n  {lines}'
  )


def _differences(model: nnx.Module, rebuilt: nnx.Module) -> Iterator[str]:
  """Yields the differences that change the outputs of a model, one line each."""
  actual, expected = dict(_describe(model)), dict(_describe(rebuilt))
  for name in sorted(set(actual) | set(expected)):
    if name not in actual or name not in expected or not _equal(actual[name], expected[name]):
      values = (
        f'expected {_text(expected.get(name, "none"))}, got {_text(actual.get(name, "none"))}'
      )
      yield f'{name or "the model"}: {values}'


def _describe(
  value: Any, path: str = '', ancestors: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Any]]:
  """Yields the path and class of every module, and the path and value of every attribute.

  Classes are compared because a subclass of a t2x class may compute something else from the same
  attributes.
  """
  items: Mapping[str, Any] = {}
  if any(value is ancestor for ancestor in ancestors):
    return
  if isinstance(value, nnx.Variable):
    yield path, tuple(value.shape)
  elif isinstance(value, nnx.Module):
    yield path, type(value)
    items = {name: item for name, item in vars(value).items() if not name.startswith('_pytree__')}
  elif type(value) in (list, tuple):
    yield path, f'{type(value).__name__} of {len(value)}'
    items = {str(i): item for i, item in enumerate(value)}
  elif type(value) is dict:
    yield path, f'dict of {len(value)}'
    items = {str(name): item for name, item in value.items()}
  elif type(value) is functools.partial:
    yield path, functools.partial
    items = {'function': value.func, 'positional': value.args, 'named': value.keywords}
  elif type(value) in KERNELS:
    yield path, 'a kernel of t2x'
  elif dataclasses.is_dataclass(value) and not isinstance(value, type):
    yield path, type(value)
    items = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
  else:
    yield path, value
  for name, item in items.items():
    if name not in IGNORED_ATTRIBUTES:
      yield from _describe(item, f'{path}.{name}' if path else name, (*ancestors, value))


def _equal(actual: object, expected: object) -> bool:
  """Returns whether two values are equal; except for numbers, their types must be equal too."""
  are_numbers = all(type(value) in (int, float) for value in (actual, expected))
  if not are_numbers and type(actual) is not type(expected):
    return False
  return actual is expected or bool(np.all(actual == expected))


def _text(value: object) -> str:
  is_named = isinstance(value, type) or callable(value)
  name = getattr(value, '__qualname__', None) if is_named else None
  return f'{value.__module__}.{name}' if name else str(value)
