"""What a family of models is to others: names, layouts, and the fields of its config.json."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from t2x import layers
from t2x.errors import UserError
from t2x.interop.rules import Rule

__all__ = [
  'Family',
  'Fields',
  'activation',
  'activation_name',
  'fields_of_attention',
  'num_classes',
]

# Theirs -> ours. The first of theirs that means ours is the one written.
ACTIVATIONS: Mapping[str, str] = {
  'gelu': 'gelu_exact',
  'gelu_new': 'gelu',
  'gelu_pytorch_tanh': 'gelu',
  'gelu_fast': 'gelu',
  'relu': 'relu',
  'silu': 'silu',
  'swish': 'silu',
  'quick_gelu': 'quick_gelu',
  'tanh': 'tanh',
}


class Fields(dict):
  """The fields of a config.json over its family's defaults, by name; a missing one is told."""

  def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any], where: str):
    super().__init__({**defaults, **given})
    self.where = where

  def __missing__(self, name: str) -> Any:
    raise UserError(f"{self.where} has no field '{name}'")

  def only(self, name: str, *values: Any) -> None:
    """Refuses what our parts cannot say.

    Raises:
      UserError: the field has none of `values`.
    """
    if self.get(name, values[0]) not in values:
      known = ' or '.join(map(repr, values))
      raise UserError(f'{self.where}: {name} = {self[name]!r} is not supported, only {known}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """Models that others keep in one layout, built here of our parts.

  Attributes:
    model_type: the name in config.json.
    architectures: class names in config.json, the one of a model with all its heads first.
    gin: fields (with `architecture`) -> the config of the model, as gin text.
    fields: our model -> (architecture, fields of config.json that make `gin` give it back). May
      raise AttributeError, TypeError or KeyError for a model of other parts.
    rules: where everything lies, every head included.
    defaults: fields that a config.json may leave out.
    prefix: of their names; a file of the bare model leaves it out.
    bare: the architecture of the bare model, where we export one.
    renamed: regular expression -> replacement, applied to their names first (old spellings).
    ignored: patterns of tensors that say nothing: copies of tied tables, buffers.
    tokenizer_files: what else is taken along.
  """

  model_type: str
  architectures: Sequence[str]
  gin: Callable[[Fields], str]
  fields: Callable[[nnx.Module], tuple[str, dict[str, Any]]]
  rules: Sequence[Rule]
  defaults: Mapping[str, Any]
  prefix: str = ''
  bare: str = ''
  renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  ignored: Sequence[str] = ()


def activation(fields: Fields, name: str) -> str:
  """Our name of the activation in a field.

  Raises:
    UserError: it is not known.
  """
  fields.only(name, *ACTIVATIONS)
  return ACTIVATIONS[fields[name]]


def activation_name(function: Callable) -> str:
  """Their name of an activation of ours.

  Raises:
    KeyError: they have none.
  """
  names = {getattr(layers, ours): theirs for theirs, ours in reversed([*ACTIVATIONS.items()])}
  return names[function]


def fields_of_attention(mixer: Any) -> tuple[int, int, int]:
  """Heads, heads of keys and values, features of a head."""
  *_, heads, head_dim = mixer.q.kernel.shape
  return heads, mixer.num_kv_heads, head_dim


def num_classes(fields: Fields) -> int:
  """Classes of a head: as many as have names, or as the fields say; two where they do not."""
  return len(fields.get('id2label') or ()) or fields.get('num_labels', 2)
