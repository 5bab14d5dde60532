"""What a family of models is to others: names, layouts, and the fields of its config.json."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from t2x import layers
from t2x.foreign import Choice, Field, Fields, Float, Int, Many, Object, Text
from t2x.interop.rules import Rule

__all__ = [
  'ACTIVATIONS',
  'CLASSES',
  'Family',
  'Layers',
  'Part',
  'Size',
  'activation',
  'activation_field',
  'activation_name',
  'fields_of_attention',
  'num_classes',
  'positive',
  'rate',
  'write',
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


@dataclasses.dataclass(frozen=True)
class Size(Int):
  """A size that a dimension of some tensor has, or a factor of one."""

  low: int = 1


@dataclasses.dataclass(frozen=True)
class Layers(Int):
  """A number of layers: of few enough to be looked at one by one."""

  low: int = 1
  high: int = 1000


def rate(default: float | None) -> Float:
  """A dropout rate."""
  return Float(default, 0.0, 1.0, excluded=1.0)


def positive(default: Any, high: float = 1e12) -> Float:
  """A number above zero."""
  return Float(default, 0.0, high, excluded=0.0)


def activation_field(default: str) -> Choice:
  """The name of an activation."""
  return Choice(default, ACTIVATIONS)


# The classes of a head: names by number, or a count.
CLASSES: Mapping[str, Field] = {'id2label': Object(None), 'num_labels': Size(2)}


class Part(str):
  """The name of a part of ours, `scope/Name`: a reference in gin text. Never made of what a file says."""


def write(template: str, values: Mapping[str, Any], **more: Any) -> str:
  """The template with each `{name}` replaced by the value of that name, as gin text.

  A value cannot be anything but one literal or reference: gin's literals are Python's.
  """
  return re.sub(
    r'\{(\w+)\}',
    lambda found: _gin(more[name] if (name := found[1]) in more else values[name]),
    template,
  )


def _gin(value: Any) -> str:
  if isinstance(value, Part):
    return f'@{value}'
  if isinstance(value, list):
    return f'[{", ".join(map(_gin, value))}]'
  if value is None or type(value) in (bool, int, float, str):
    return repr(value)
  raise TypeError(f'{value!r} is written into no config')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """Models that others keep in one layout, built here of our parts.

  A config.json is read through `read` only, so that `gin` sees no field whose type and range were not
  checked.

  Attributes:
    model_type: the name in config.json.
    architectures: class names in config.json, the one of a model with all its heads first.
    gin: what `read` returns -> the config of the model, as gin text.
    fields: our model -> (architecture, fields of config.json that make `gin` give it back). May
      raise AttributeError, TypeError or KeyError for a model of other parts.
    rules: where everything lies, every head included.
    declared: the fields of config.json that `gin` reads, and those of which one value is supported.
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
  declared: Mapping[str, Field]
  prefix: str = ''
  bare: str = ''
  renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  ignored: Sequence[str] = ()

  def read(self, given: Mapping[str, Any], where: str) -> Fields:
    """The declared fields of a config.json, and `architecture`.

    Raises:
      UserError: a field has another type, lies outside of its range or is not supported.
    """
    named = Fields(given, {'architectures': Many(None, Text(''))}, where)['architectures']
    architecture = named[0] if named else self.architectures[0]
    declared = {**self.declared, 'architecture': Choice(self.architectures[0], self.architectures)}
    return Fields({**given, 'architecture': architecture}, declared, where)


def activation(fields: Fields, name: str) -> Part:
  """Our activation of the name in a field."""
  return Part(ACTIVATIONS[fields[name]])


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
  return len(fields['id2label'] or ()) or fields['num_labels']
