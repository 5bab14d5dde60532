"""Gin templates of models, written with the values of config.json and read back from a model.

A template is gin text in which `{name}` stands for a value. `write` fills the values in; `read_back` walks the
references of the same template (`Decoder.stack = @Stack`) along a model and collects the value of every
`{name}`, so that a family declares where a field goes only once.
"""

import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flax import nnx

from t2x import layers

# Arguments of our parts that are not kept in an attribute of the same name.
ARGUMENTS: Mapping[str, Callable[[Any], Any]] = {
  'Block.wiring': lambda part: part.mixer_wiring,
  'EncoderDecoder.d_model': lambda part: part.decoder.output_dim,
  'Encoder.input_dim': lambda part: part.projection.kernel.shape[0],
  'GatedMLP.hidden_dim': lambda part: part.up.kernel.shape[-1],
  'GatedMLP.use_bias': lambda part: part.up.bias is not None,
  'LanguageModel.d_model': lambda part: part.body.output_dim,
  'LanguageModel.embedding_dim': lambda part: part.embedding.table.shape[-1],
  'MaskedLMHead.embedding_dim': lambda part: part.transform.kernel.shape[-1],
  'MLP.hidden_dim': lambda part: part.up.kernel.shape[-1],
  'MLP.use_bias': lambda part: part.up.bias is not None,
  'MultiHeadAttention.out_bias': lambda part: part.out.bias is not None,
  'MultiHeadAttention.use_bias': lambda part: part.q.bias is not None,
  'PatchEmbedding.channels': lambda part: part.projection.kernel.shape[2],
  'T5Bias.num_heads': lambda part: part.table.shape[-1],
  'TiedHead.scaled': lambda part: part.scale != 1.0,
  'TiedHead.use_bias': lambda part: part.bias is not None,
  'TokenEmbedding.scaled': lambda part: part.scale != 1.0,
  'VisionTransformer.d_model': lambda part: part.body.output_dim,
}

# The layers of nearly every family, with a norm before each sublayer. The names are those of transformers'
# newer configs.
LAYERS = """
Stack:
  num_layers = {num_hidden_layers}
  blocks = [@Block]
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  wiring = @PreNorm
PreNorm:
  norm = @LayerNorm
  dropout_rate = {hidden_dropout}
LayerNorm.epsilon = {layer_norm_eps}
MultiHeadAttention:
  num_heads = {num_attention_heads}
  dropout_rate = {attention_dropout}
MLP:
  hidden_dim = {intermediate_size}
  activation = {hidden_act}
"""
# The same with attention and feed-forward layer side by side.
PARALLEL_LAYERS = """
Stack:
  num_layers = {num_hidden_layers}
  blocks = [@ParallelBlock]
ParallelBlock:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  norm = @LayerNorm
  feed_forward_norm = @LayerNorm
""" + LAYERS.partition('{hidden_dropout}\n')[2]
# What is around the layers of a decoder.
DECODER = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {hidden_size}
  embedding = @TokenEmbedding
  body = @Decoder
  head = {tie_word_embeddings}
TokenEmbedding.vocab_size = {vocab_size}
Decoder:
  stack = @Stack
  input_dropout = {embedding_dropout}
  final_norm = @LayerNorm
"""
LEARNED_POSITIONS = """
Decoder.encoding = @LearnedPositions
LearnedPositions.max_length = {max_position_embeddings}
"""
ATTENTION_BIAS = """
MultiHeadAttention:
  use_bias = {attention_bias}
  out_bias = {attention_bias}
"""
# An encoder with a norm after the embeddings and after each sublayer.
ENCODER = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {hidden_size}
  embedding = @TokenEmbedding
  body = @Encoder
TokenEmbedding:
  vocab_size = {vocab_size}
  num_types = {type_vocab_size}
LearnedPositions.max_length = {max_position_embeddings}
Encoder:
  stack = @Stack
  encoding = @LearnedPositions
  input_norm = @LayerNorm
  input_dropout = {hidden_dropout}
  final_norm = None
""" + LAYERS.replace('PreNorm', 'PostNorm')


class Part(str):
  """The name of a part of ours, `scope/Name`: a reference in gin text. Never made of what a file says."""


def write(template: str, values: Mapping[str, Any]) -> str:
  """The template with each `{name}` replaced by the value of that name, as gin text.

  A value cannot be anything but one literal or reference: gin's literals are Python's.
  """
  return re.sub(r'\{(\w+)\}', lambda match: _gin(values[match[1]]), template)


def _gin(value: Any) -> str:
  if isinstance(value, Part):
    return f'@{value}'
  if isinstance(value, list):
    return f'[{", ".join(map(_gin, value))}]'
  if value is None or type(value) in (bool, int, float, str):
    return repr(value)
  raise TypeError(f'{value!r} cannot be written into a config')


def fill(template: str, **names: Any) -> str:
  """The template with other names of values: a string is a name, anything else a value."""

  def renamed(match: re.Match) -> str:
    name = names.get(match[1], match[1])
    return f'{{{name}}}' if type(name) is str else _gin(name)

  return re.sub(r'\{(\w+)\}', renamed, template)


def read_back(template: str, model: Any) -> dict[str, Any]:
  """The value of each `{name}` of the template in a model.

  Raises:
    AttributeError: the model lacks a part of the template.
  """
  values: dict[str, Any] = {}
  for _, text, value in _walk(template, model):
    if text.startswith('{'):
      values.setdefault(text[1:-1], value)
  return values


def holds(template: str, option: str, model: Any) -> bool:
  """Whether the model has all that `option`, appended to the template, binds."""
  missing = {
    f'{selector}.{name}' for selector, names in _bindings(option).items() for name in names
  }
  try:
    for binding, text, value in _walk(template + option, model):
      if binding in missing and _agrees(text, value):
        missing.remove(binding)
  except AttributeError:
    return False
  return not missing


def is_part(value: Any, name: str) -> bool:
  """Whether a value of a model is what `@name` builds, or the function of that name."""
  return value is not None and (
    type(value).__name__ == name or value is getattr(layers, name, None)
  )


def _agrees(text: str, value: Any) -> bool:
  """Whether a value is what a binding names. Numbers are left to the comparison of the whole model."""
  if text.startswith('@'):
    return is_part(value, re.split('[@/]', text.removesuffix('()'))[-1])
  return value is {'True': True, 'False': False, 'None': None}.get(text, value)


def _bindings(template: str) -> dict[str, dict[str, str]]:
  """Selector -> parameter -> its text."""
  found: dict[str, dict[str, str]] = {}
  block = ''
  for line in template.splitlines():
    name, equals, text = line.partition(' = ')
    if line.endswith(':'):
      block = line[:-1]
    elif equals:
      full = f'{block}.{name.strip()}' if line.startswith(' ') else name
      selector, _, parameter = full.rpartition('.')
      found.setdefault(selector, {})[parameter] = text
  return found


def _walk(template: str, model: Any) -> Iterator[tuple[str, str, Any]]:
  """(binding, its text, the value in the model) of each binding that acts in the model."""
  bindings = _bindings(template)

  def visit(reference: str, part: Any) -> Iterator[tuple[str, str, Any]]:
    *scopes, name = reference.split('/')
    acting: dict[str, tuple[str, str]] = {}
    for selector in (name, *(f'{scope}/{name}' for scope in scopes)):
      acting |= {key: (selector, text) for key, text in bindings.get(selector, {}).items()}
    for parameter, (selector, text) in acting.items():
      argument = f'{name}.{parameter}'
      value = ARGUMENTS.get(argument, operator.attrgetter(parameter))(part)
      yield f'{selector}.{parameter}', text, value
      values = value if isinstance(value, nnx.List) else [value]
      # A part that a value of config.json names is known by its class only.
      named = re.findall(r'@([\w/]+)', text) or [type(one).__name__ for one in values]
      for inner, one in zip(named, values, strict=False):
        yield from visit('/'.join([*scopes, inner]), one)

  yield from visit('Experiment', types.SimpleNamespace(model=model))
