"""A family of models in Hugging Face folders: the names and layouts of its tensors, and the fields of its
config.json."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from t2x.errors import UserError
from t2x.external_files import (
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
from t2x.interop.template import Part, holds, is_part, read_back, write

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

# Fields of any config.json that do not change what a model computes: notes about the file, how transformers
# runs it, what it returns, initialisation, ids of tokens and the other defaults of generation, and heads that
# are not imported.
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
# Fields of any config.json that are supported only where they are switched off.
OFF: Mapping[str, Field] = {
  'add_cross_attention': Only(False),
  'pruned_heads': Only({}),
  'tie_encoder_decoder': Only(False),
}


@dataclasses.dataclass(frozen=True)
class Size(Int):
  """A size that a dimension of some tensor has, or a factor of one."""

  low: int = 1


@dataclasses.dataclass(frozen=True)
class Layers(Int):
  """A number of layers; few enough to be visited one by one."""

  low: int = 1
  high: int = 1000


@dataclasses.dataclass(frozen=True)
class Named(Field):
  """A field whose values name parts of ours.

  Attributes:
    parts: value -> our name. Of several values for one part the first is written.
  """

  parts: Mapping[Any, str]

  @property
  def wanted(self):
    return ' or '.join(map(repr, self.parts))

  def accepts(self, value):
    return isinstance(value, (bool, str)) and value in self.parts

  def convert(self, value):
    return Part(self.parts[value])

  def restore(self, value):
    """The value that names a part; of a part without a name the first, which the export then reports."""
    names = (name for name, ours in self.parts.items() if is_part(value, ours))
    return next(names, next(iter(self.parts)))


def sizes(**defaults: int | None) -> dict[str, Field]:
  """Sizes by name, with their defaults."""
  return {name: Size(default) for name, default in defaults.items()}


def rates(**defaults: float | None) -> dict[str, Field]:
  """Dropout rates by name, with their defaults."""
  return {name: Float(default, 0.0, 1.0, excluded=1.0) for name, default in defaults.items()}


def only(value: Any, *names: str) -> dict[str, Field]:
  """Fields of which one value is supported, by name."""
  return dict.fromkeys(names, Only(value))


def positive(default: Any, high: float = 1e12) -> Float:
  """A number above zero."""
  return Float(default, 0.0, high, excluded=0.0)


def activation(default: str, names: Mapping[str, str] = ACTIVATIONS) -> Named:
  """The name of an activation."""
  return Named(default, names)


def tied(default: bool) -> Named:
  """Whether the head over the vocabulary is the table of the token embedding."""
  return Named(default, {True: 'TiedHead', False: 'LMHead'})


# The classes of a head: names by number, or a count.
CLASSES: Mapping[str, Field] = {'id2label': Object(None), 'num_labels': Size(2)}


def num_classes(fields: Fields) -> dict[str, Any]:
  """Classes of a head: as many as have names, or as the fields say; two where they do not."""
  return {'num_labels': len(fields['id2label'] or ()) or fields['num_labels']}


def refuse_unread(given: Mapping[str, Any], names: Sequence[str], where: str) -> None:
  """Raises UserError for the first field of a JSON object that is not one of `names`."""
  for name in sorted(set(given) - set(names)):
    raise UserError(
      f'{where}: {printed(name)} = {shown(given[name])} is not supported, and it may change what the model '
      'computes: if it does not, remove it from the file'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """Models that are saved in one layout, built here of our parts.

  A config.json is read through `read` only, so that `gin` sees no field whose type and range were not
  checked.

  Attributes:
    model_type: the name in config.json.
    architectures: class names in config.json: of a model with all its heads first, of the bare model last.
    template: the config of the model as gin text, `{name}` for the value of a field of config.json or of
      `derive`. A model is exported by reading the same values back from it.
    declared: the fields of config.json that are used, and those of which one value is supported.
    choices: name of a value -> value -> text that is added to the template. The value is read back as the
      first whose text the model has, the last if none is.
    derive: checked fields -> further values, or others for the same names.
    restore: what was read back from a model -> the same with the fields that are not values of the template.
    rules: where all parameters lie, those of every head included.
    aliases: another name of a field -> its name. A file with both must give both the same value.
    no_effect: fields besides `NO_EFFECT` that do not change what the model computes.
    prefix: of the names of tensors; a file of the bare model leaves it out.
    bare: the architecture of the bare model, where models are exported without heads.
    renamed: regular expression -> replacement, applied to the names of tensors first (old spellings).
    ignored: patterns of tensors that are not read: copies of tied tables, buffers.
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

  def read(self, given: Mapping[str, Any], where: str) -> Fields:
    """The declared fields of a config.json, and `architecture`.

    Raises:
      UserError: a field has another type, lies outside of its range, is not supported, or is not read.
    """
    refuse_unread(
      given, [*NO_EFFECT.split(), *OFF, *self.declared, *self.aliases, *self.no_effect], where
    )
    given = dict(given)
    for alias, name in self.aliases.items():
      if (value := given.get(alias)) is not None and given.setdefault(name, value) != value:
        raise UserError(
          f'{where}: {alias} = {shown(value)} and {name} = {shown(given[name])} are two names of one '
          'field: remove one'
        )
    named = Fields(given, {'architectures': Many(None, Text(''))}, where)['architectures']
    given['architecture'] = named[0] if named else self.architectures[0]
    architecture = Choice(self.architectures[0], self.architectures)
    return Fields(given, {**OFF, **self.declared, 'architecture': architecture}, where)

  def gin(self, fields: Fields) -> str:
    """The config of the model of checked fields."""
    values = {**fields, **self.derive(fields)}
    head = self.declared.get('tie_word_embeddings')
    if isinstance(head, Named) and fields['architecture'] == self.architectures[-1]:
      # The bare model has no head; one that costs nothing stands in.
      values['tie_word_embeddings'] = head.convert(True)
    options = (options[values[name]] for name, options in self.choices.items())
    return write(''.join([self.template, *options]), values)

  def fields(self, model: nnx.Module) -> tuple[str, dict[str, Any]]:
    """The architecture and the fields of config.json of a model.

    Raises:
      AttributeError, ValueError: the model has other parts.
    """
    text, values = self.template, {'architecture': self.architectures[0]}
    for name, options in self.choices.items():
      matches = (value for value in options if holds(text, options[value], model))
      values[name] = next(matches, [*options][-1])
      text += options[values[name]]
    values = self.restore(read_back(text, model) | values)
    constants = {name: f.default for name, f in self.declared.items() if isinstance(f, Only)}
    read = {name: field for name, field in self.declared.items() if name in values}
    fields = {name: field.restore(values[name]) for name, field in read.items()}
    return values['architecture'], fields | constants
