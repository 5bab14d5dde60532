"""Our models as Hugging Face folders."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from t2x.arrays import named_leaves
from t2x.errors import UserError
from t2x.interop.families import FAMILIES
from t2x.interop.family import Family
from t2x.interop.rules import Table
from t2x.interop.safetensors import write_tensors
from t2x.layers import XLA, Auto, Blockwise, Dense

# What a model of our parts computes does not depend on these attributes, nor on which of our kernels it uses.
FREE = {
  'chunk',
  'dropout_rate',
  'final_dropout',
  'input_dropout',
  'remat',
  'stochastic_depth',
  'unroll',
}
KERNELS = (Auto, Blockwise, Dense, XLA)

Build = Callable[[str], Callable[..., nnx.Module]]


def export(
  model: nnx.Module,
  build: Build,
  folder: Path,
  arrays: Callable[[str], np.ndarray],
  model_type: str | None = None,
  extra: Mapping[str, Any] | None = None,
) -> Family:
  """Writes config.json and safetensors, one tensor after the other.

  Args:
    model: ours, or its shapes.
    build: gin text of a model -> its builder, to see that config.json says the same model.
    folder: where.
    arrays: gives a parameter of ours by name.
    model_type: the family; None: the one whose config.json says this model.
    extra: more fields of config.json.

  Returns:
    The family.

  Raises:
    UserError: the model is none of theirs: what differs from the nearest.
  """
  family, config = _told(model, build, model_type)
  leaves = {name: tuple(leaf.shape) for name, leaf in named_leaves(model)}
  table = Table(family.rules, leaves)
  prefix = family.prefix if config['architectures'] == [family.bare] else ''
  specs = {
    name.removeprefix(prefix): (table.their_shape(name), np.float32) for name in table.tensors
  }
  kept: dict[str, np.ndarray] = {}
  of_rule = None

  def tensor(name: str) -> np.ndarray:
    nonlocal of_rule
    found, ours = table.tensors[prefix + name], []
    if found.rule is not of_rule:  # The layers of one rule follow each other.
      kept.clear()
      of_rule = found.rule
    for one, index in found.parts:
      if one not in kept:
        kept[one] = arrays(one)
      ours.append(kept[one][index])
    return found.layout.whole(ours)

  write_tensors(folder, specs, tensor)
  extra = dict(extra or {})
  if len(extra.get('id2label') or ()) != config.get('num_labels', 0):  # Names of other classes.
    extra = {name: value for name, value in extra.items() if name not in ('id2label', 'label2id')}
  text = json.dumps(extra | config, indent=2, sort_keys=True)
  (folder / 'config.json').write_text(text + '\n', encoding='utf-8')
  return family


def _told(model: nnx.Module, build: Build, model_type: str | None) -> tuple[Family, dict[str, Any]]:
  """The family whose config.json gives this model back, and that config.json."""
  if model_type is not None and model_type not in FAMILIES:
    known = ', '.join(sorted(FAMILIES))
    raise UserError(f'{model_type!r} is no family that is known; these are: {known}')
  candidates = [FAMILIES[model_type]] if model_type else FAMILIES.values()
  nearest: tuple[str, list[str]] | None = None
  for family in candidates:
    try:
      architecture, fields = family.fields(model)
      fields |= {'architectures': [architecture], 'model_type': family.model_type}
      gin = family.gin(family.read(fields, 'the model'))
      theirs = jax.eval_shape(lambda gin=gin: build(gin)(rngs=nnx.Rngs(0)))
    except (
      AttributeError,
      ArithmeticError,
      LookupError,
      TypeError,
      ValueError,
      UserError,
    ) as error:
      if model_type:
        raise UserError(f'this model has not the parts of {model_type}: {error}') from error
      continue
    differences = list(_differences(model, theirs))
    if not differences:
      return family, fields | {'dtype': 'float32'}
    if nearest is None or len(differences) < len(nearest[1]):
      nearest = family.model_type, differences
  if nearest is None:
    raise UserError(f'this model has the parts of none of {", ".join(sorted(FAMILIES))}')
  told = '\n  '.join(nearest[1][:8])
  raise UserError(f'this model is none that they have; with {nearest[0]} compared:\n  {told}')


def _differences(ours: nnx.Module, theirs: nnx.Module) -> Iterator[str]:
  """Where two models differ, but for what does not change what they compute."""
  here, there = dict(_described(ours)), dict(_described(theirs))
  for name in sorted(set(here) | set(there)):
    if name not in here or name not in there or not _same(here[name], there[name]):
      told = f'is {_text(here.get(name, "not there"))}, there {_text(there.get(name, "none"))}'
      yield f'{name or "the model"} {told}'


def _described(
  value: Any, path: str = '', around: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Any]]:
  """The classes of all modules, and the values of their attributes, by path.

  A class that is not ours, a subclass of one of ours too, may compute something else from the same
  attributes: so the classes themselves are compared.
  """
  items: Mapping[str, Any] = {}
  if any(value is one for one in around):
    return
  if isinstance(value, nnx.Variable):
    yield path, tuple(value.shape)
  elif isinstance(value, nnx.Module):
    yield path, type(value)
    items = {name: one for name, one in vars(value).items() if not name.startswith('_pytree__')}
  elif type(value) in (list, tuple):
    yield path, f'{type(value).__name__} of {len(value)}'
    items = {str(i): one for i, one in enumerate(value)}
  elif type(value) is dict:
    yield path, f'dict of {len(value)}'
    items = {str(name): one for name, one in value.items()}
  elif type(value) is functools.partial:
    yield path, functools.partial
    items = {'function': value.func, 'positional': value.args, 'named': value.keywords}
  elif dataclasses.is_dataclass(value) and not isinstance(value, type):
    yield path, type(value)
    items = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
  else:
    yield path, value
  for name, one in items.items():
    if name not in FREE and type(one) not in KERNELS:
      yield from _described(one, f'{path}.{name}' if path else name, (*around, value))


def _same(here: Any, there: Any) -> bool:
  """Whether two values are equal, and of one class unless both are numbers."""
  are_numbers = all(type(one) in (int, float) for one in (here, there))
  if not are_numbers and type(here) is not type(there):
    return False
  return here is there or bool(np.all(here == there))


def _text(value: Any) -> str:
  is_named = isinstance(value, type) or callable(value)
  name = getattr(value, '__qualname__', None) if is_named else None
  return f'{value.__module__}.{name}' if name else str(value)
