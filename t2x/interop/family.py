"""Families of Hugging Face models: the fields of config.json, and the names and layouts of tensors."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flax import nnx

from t2x.base.errors import UserError
from t2x.base.external_files import (
  Choice,
  Field,
  Fields,
  Float,
  Int,
  Many,
  Object,
  Only,
  Text,
  printed,
  shown,
)
from t2x.interop.rules import Rule
from t2x.interop.template import GinReference, has_option, is_part, read_back, write

__all__ = ['Family']

# Hugging Face activation -> t2x activation. The first name of an activation is exported.
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

# Fields of any config.json that do not change the outputs of a model: metadata of the file, execution and
# return values in transformers, initialisation, token ids, defaults of generation, and heads that are not
# imported.
NO_EFFECT = """
_attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path
_num_labels architectures attn_implementation auto_map dtype finetuning_task model_type name_or_path
problem_type task_specific_params tokenizer_class torch_dtype transformers_version

chunk_size_feed_forward gradient_checkpointing is_decoder is_encoder_decoder output_attentions
output_hidden_states output_past pretraining_tp reorder_and_upcast_attn return_dict tf_legacy_loss
tie_last_hidden_states torchscript use_bfloat16 use_cache

embed_init_std init_std initializer_factor initializer_range

bos_token_id cls_token_id decoder_start_token_id eos_token_id mask_token_id pad_token_id prefix
sep_token_id unk_token_id

bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
encoder_no_repeat_ngram_size exponential_decay_length_penalty force_bos_token_to_be_generated
forced_bos_token_id forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size
num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty
return_dict_in_generate suppress_tokens temperature top_k top_p typical_p

classif_dropout classifier_dropout cross_attention_hidden_size id2label label2id num_labels
summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
"""
# Fields of any config.json that are supported only if disabled.
DISABLED: Mapping[str, Field] = {
  'add_cross_attention': Only(False),
  'pruned_heads': Only({}),
  'tie_encoder_decoder': Only(False),
}


@dataclasses.dataclass(frozen=True)
class Size(Int):
  """The size of a tensor dimension, or a factor of such a size."""

  low: int = 1


@dataclasses.dataclass(frozen=True)
class Layers(Int):
  """A number of layers, limited because the layers are enumerated."""

  low: int = 1
  high: int = 1000


@dataclasses.dataclass(frozen=True)
class PartField(Field):
  """A field whose values select t2x modules or functions.

  Attributes:
    parts: value -> t2x name. The first value of a name is exported.
  """

  parts: Mapping[Any, str]

  @property
  def wanted(self):
    return ' or '.join(map(repr, self.parts))

  def accepts(self, value):
    return isinstance(value, (bool, str)) and value in self.parts

  def convert(self, value):
    return GinReference(self.parts[value])

  def restore(self, value):
    """Returns the value for a part. An unknown part gets the first value, which the export then rejects."""
    names = (name for name, part in self.parts.items() if is_part(value, part))
    return next(names, next(iter(self.parts)))


def sizes(**defaults: int | None) -> dict[str, Field]:
  """Size fields by name, with their defaults."""
  return {name: Size(default) for name, default in defaults.items()}


def rates(**defaults: float | None) -> dict[str, Field]:
  """Dropout rate fields by name, with their defaults."""
  return {name: Float(default, 0.0, 1.0, excluded=1.0) for name, default in defaults.items()}


def only(value: object, *names: str) -> dict[str, Field]:
  """Fields by name, with `value` as the only supported value."""
  return dict.fromkeys(names, Only(value))


def positive(default: object, high: float = 1e12) -> Float:
  """A field for a positive number."""
  return Float(default, 0.0, high, excluded=0.0)


def activation(default: str, names: Mapping[str, str] = ACTIVATIONS) -> PartField:
  """A field for an activation function."""
  return PartField(default, names)


def tied(default: bool) -> PartField:
  """A field for tying the language model head to the token embedding."""
  return PartField(default, {True: 'TiedHead', False: 'LMHead'})


# The classes of a classification head: number -> label, or their count.
CLASSES: Mapping[str, Field] = {'id2label': Object(None), 'num_labels': Size(2)}


def num_classes(fields: Fields) -> dict[str, Any]:
  """The number of classes: the number of labels in `id2label`, or else `num_labels`."""
  return {'num_labels': len(fields['id2label'] or ()) or fields['num_labels']}


def check_unread_fields(values: Mapping[str, Any], names: Sequence[str], where: str) -> None:
  """Raises UserError for the first field of a JSON object that is not one of `names`."""
  for name in sorted(set(values) - set(names)):
    raise UserError(
      f'{where}: {printed(name)} = {shown(values[name])} is not supported and may change the outputs of the '
      'model; if it does not, remove it from the file'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """A Hugging Face model type and its equivalent in t2x modules.

  Only `read` reads a config.json, so that `gin` gets fields of validated type and range.

  Attributes:
    model_type: `model_type` in config.json.
    architectures: class names in config.json; the model with all its heads first, the bare model last.
    template: gin text of the model, with `{name}` for a value from config.json or `derive`. The export reads
      the same values back from a model.
    declared: the fields of config.json that are read, and fields with only one supported value.
    choices: name of a value -> value -> gin text that is added to the template. The value read back from a
      model is the first whose text matches the model, or else the last.
    derive: maps validated fields to additional or replaced values.
    restore: adds fields that are not in the template to the values read back from a model.
    rules: the tensors of all parameters, including every head.
    aliases: alias -> name of a field. If a file has both, their values must be equal.
    no_effect: fields in addition to `NO_EFFECT` that do not change the outputs of the model.
    prefix: prefix of the tensor names, absent in files of the bare model.
    bare: the architecture of the bare model, if models can be exported without a head.
    renamed: regular expression -> replacement, applied first to tensor names of old files.
    ignored: patterns of tensor names that are not read: copies of tied tables, buffers.
    kept: patterns of tensor names without effect in t2x, which a run folder keeps for its export (mask tokens).
    nested: names of the objects in config.json that describe parts of the model, the part of texts first. Their fields
      are named `OBJECT.FIELD` in the template, `declared` and values. `NO_EFFECT` and `no_effect` apply to them, too.
  """

  model_type: str
  architectures: Sequence[str]
  template: str
  declared: Mapping[str, Field]
  choices: Mapping[str, Mapping[Any, str]] = dataclasses.field(default_factory=dict)
  derive: Callable[[Fields], Mapping[str, Any]] = lambda fields: {}
  restore: Callable[[dict[str, Any]], dict[str, Any]] = dict
  rules: Sequence[Rule]
  aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
  no_effect: Sequence[str] = ()
  prefix: str = ''
  bare: str = ''
  renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  ignored: Sequence[str] = ()
  kept: Sequence[str] = ()
  nested: Sequence[str] = ()

  def kept_of(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors whose names match `kept`."""
    patterns = '|'.join(self.kept) or '(?!)'
    return {name: tensor for name, tensor in tensors.items() if re.fullmatch(patterns, name)}

  def flat(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields of a config.json, those of `nested` objects with their full names.

    Raises:
      UserError: one of these is no object.
    """
    parts = Fields(config, dict.fromkeys(self.nested, Object(None)), where)
    values = {name: value for name, value in config.items() if name not in self.nested}
    fields = ((name, part or {}) for name, part in parts.items())
    return values | {f'{name}.{field}': v for name, part in fields for field, v in part.items()}

  def json(self, values: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of a config.json, the inverse of `flat`.

    Args:
      values: the fields by their full names.
      extra: further fields, which `values` override. Ids of special tokens are written into the part of texts.
    """
    further = self.flat(extra, 'config.json')
    for name in self.nested[:1]:
      ids = [field for field in further if field.endswith('_token_id') and '.' not in field]
      further |= {f'{name}.{field}': further.pop(field) for field in ids}
    result: dict[str, Any] = {}
    for name, value in (further | dict(values)).items():
      *parts, field = name.split('.')
      inner = result.setdefault(parts[0], {}) if parts and parts[0] in self.nested else result
      inner[field if inner is not result else name] = value
    return result

  def _everywhere(self, names: Iterable[str]) -> Iterator[str]:
    """Yields names of fields in a config.json and in its nested objects."""
    for name in names:
      yield name
      yield from (f'{part}.{name}' for part in self.nested)

  def read(self, config: Mapping[str, Any], where: str) -> Fields:
    """Returns the validated fields of a config.json, and `architecture`.

    Raises:
      UserError: a field has a wrong type, is out of range, or is not supported.
    """
    values = self.flat(config, where)
    disabled = {name: field for one, field in DISABLED.items() for name in self._everywhere([one])}
    ignored = self._everywhere([*NO_EFFECT.split(), *self.no_effect])
    check_unread_fields(values, [*ignored, *disabled, *self.declared, *self.aliases], where)
    for alias, name in self.aliases.items():
      if (value := values.get(alias)) is not None and values.setdefault(name, value) != value:
        raise UserError(
          f'{where}: {alias} = {shown(value)} contradicts {name} = {shown(values[name])}, another name of '
          'the same field: remove one of them'
        )
    names = Fields(values, {'architectures': Many(None, Text(''))}, where)['architectures']
    values['architecture'] = names[0] if names else self.architectures[0]
    architecture = Choice(self.architectures[0], self.architectures)
    return Fields(values, {**disabled, **self.declared, 'architecture': architecture}, where)

  def gin(self, fields: Fields) -> str:
    """Returns the gin text of the model with validated fields."""
    values = {**fields, **self.derive(fields)}
    head = self.declared.get('tie_word_embeddings')
    if isinstance(head, PartField) and fields['architecture'] == self.architectures[-1]:
      # The bare model has no head; a tied head adds no parameters.
      values['tie_word_embeddings'] = head.convert(True)
    options = (options[values[name]] for name, options in self.choices.items())
    return write(''.join([self.template, *options]), values)

  def fields(self, model: nnx.Module) -> tuple[str, dict[str, Any]]:
    """Returns the architecture and the fields of config.json of a t2x model.

    Raises:
      AttributeError, ValueError: the model has other modules than the template.
    """
    text, values = self.template, {'architecture': self.architectures[0]}
    for name, options in self.choices.items():
      matches = (value for value in options if has_option(text, options[value], model))
      values[name] = next(matches, [*options][-1])
      text += options[values[name]]
    values = self.restore(read_back(text, model) | values)
    constants = {name: f.default for name, f in self.declared.items() if isinstance(f, Only)}
    read = {name: field for name, field in self.declared.items() if name in values}
    fields = {name: field.restore(values[name]) for name, field in read.items()}
    return values['architecture'], fields | constants
