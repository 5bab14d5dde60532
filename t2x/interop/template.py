"""Gin templates of models: filled in with values of config.json, and matched against a model.

A template is gin text with a placeholder `{name}` for each value. `write` fills in the values. `read_back`
follows the references of the same template (`Decoder.stack = @Stack`) in a model and returns the value of
every placeholder, so that a family maps each field only once.
"""

import dataclasses
import itertools
import operator
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flax import nnx

from t2x import layers
from t2x.base.names import names as names_in


def _same_kind(parts: Iterable[Any]) -> Any:
  """Returns the first of several parts.

  Raises:
    AttributeError: the parts are of different classes, which no template describes.
  """
  first, *others = parts
  if any(type(other) is not type(first) for other in others):
    raise AttributeError('the sublayers have different wirings')
  return first


def _wiring(part: Any) -> Any:
  """Returns the wiring of the sublayers; several if a mapping by sublayer was bound."""
  wirings = tuple(part.wirings.values())
  return wirings if len({*map(type, wirings)}) > 1 else wirings[0]


def _parts_in_order(part: Any) -> tuple[Any, ...]:
  return tuple(vars(part)[name] for name in part.names)


def _biases(part: object) -> Any:
  """Returns whether queries, keys and values have biases, or the names of those that have."""
  names = [name for name in 'qkv' if vars(part)[name].bias is not None]
  return len(names) == 3 if len(names) in (0, 3) else names


@dataclasses.dataclass(frozen=True)
class JointNorm:
  """A norm of all heads together, of which attention keeps only the norm itself."""

  norm: Any


# Constructor arguments of t2x modules that are not attributes of the same name.
ARGUMENTS: Mapping[str, Callable[[Any], Any]] = {
  'AudioStem.num_features': lambda part: part.input.shape[-1],
  'Block.wiring': _wiring,
  'DistilledVisionTransformer.d_model': lambda part: part.body.output_dim,
  'EncoderDecoder.d_model': lambda part: part.decoder.output_dim,
  'Encoder.input_dim': lambda part: part.projection.kernel.shape[0],
  'GatedMLP.hidden_dim': lambda part: part.up.kernel.shape[-1],
  'GatedMLP.use_bias': lambda part: part.up.bias is not None,
  'GridBias.num_heads': lambda part: part.table.shape[-1],
  'GridBranch.parts': _parts_in_order,
  'GridConvolution.factor': lambda part: (
    part.output_dim / (part.num_groups * part.convolution.kernel.shape[-2])
  ),
  'GridConvolution.group_size': lambda part: part.convolution.kernel.shape[-2],
  'GridConvolution.kernel_size': lambda part: part.convolution.kernel.shape[-3],
  'GridConvolution.use_bias': lambda part: part.convolution.bias is not None,
  'GridConvolution.width': lambda part: part.output_dim,
  'GridStem.channels': lambda part: part.input.shape[-1],
  'GridStem.parts': _parts_in_order,
  'LanguageModel.d_model': lambda part: part.body.output_dim,
  'LanguageModel.embedding_dim': lambda part: part.embedding.table.shape[-1],
  'LMHead.use_bias': lambda part: part.out.bias is not None,
  'LayerNorm.use_bias': lambda part: part.bias is not None,
  'MaskedLMHead.embedding_dim': lambda part: part.transform.kernel.shape[-1],
  'MaskedLMHead.transform_bias': lambda part: part.transform.bias is not None,
  'MaskedLMHead.use_bias': lambda part: part.bias is not None,
  'Mamba2.use_bias': lambda part: part.out.bias is not None,
  'Mamba2.conv_bias': lambda part: part.has_conv_bias,
  'MLP.hidden_dim': lambda part: part.up.kernel.shape[-1],
  'MLP.use_bias': lambda part: part.up.bias is not None,
  **{
    f'MultiHeadAttention.{name}': operator.attrgetter(f'heads.{name}')
    for name in ('num_heads', 'num_kv_heads', 'head_dim', 'value_dim')
  },
  'MultiHeadAttention.out_bias': lambda part: part.out.bias is not None,
  'MultiHeadAttention.qk_norm': lambda part: (
    JointNorm(part.q_norm) if 'q' in part.joint_norms else part.q_norm
  ),
  'MultiHeadAttention.use_bias': _biases,
  'ParallelBlock.dropout_rate': lambda part: part.wirings[''].dropout_rate,
  'PatchEmbedding.num_registers': lambda part: (
    0 if part.registers is None else part.registers.shape[0]
  ),
  'PatchEmbedding.channels': lambda part: part.projection.kernel.shape[2],
  'PooledClassifier.transform_bias': lambda part: part.transform.bias is not None,
  'PatchEmbedding.use_bias': lambda part: part.projection.bias is not None,
  'ResidualMerge.parts': _parts_in_order,
  'Sequential.parts': _parts_in_order,
  'Stages.merge': lambda part: _same_kind(part.merges),
  'SublayerBlock.sublayers': lambda part: tuple(part.sublayers.values()),
  'SublayerBlock.wiring': _wiring,
  'T5Bias.num_heads': lambda part: part.table.shape[-1],
  'TiedHead.scaled': lambda part: part.scale != 1.0,
  'TiedHead.use_bias': lambda part: part.bias is not None,
  'TokenEmbedding.scaled': lambda part: part.scale != 1.0,
  'Tower.d_model': lambda part: part.body.output_dim,
  'TwoTower.dim': lambda part: part.b_projection.kernel.shape[-1],
  'VectorProjection.use_bias': lambda part: part.bias is not None,
  'VisionTransformer.d_model': lambda part: part.body.output_dim,
}

# The pre-norm layers of most families. Placeholders have the field names of new transformers configs.
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
# `LAYERS` with attention and feed-forward layer in parallel.
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
# A decoder-only language model without its layers.
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
# A post-norm encoder with a norm after the embeddings.
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


# `{name}`, or `{object.name}` for a field of an object in config.json.
PLACEHOLDER = re.compile(r'\{([\w.]+)\}')


class GinReference(str):
  """The name of a t2x class or function, `scope/Name`, for a gin reference; never taken from a file."""


def write(template: str, values: Mapping[str, Any]) -> str:
  """Returns the gin text of a template with values in place of the placeholders.

  A value is always written as a single literal or reference, so that it cannot inject other statements. Gin
  literals are Python literals.
  """
  return re.sub(PLACEHOLDER, lambda match: _gin(values[match[1]]), template)


def _gin(value: object) -> str:
  if isinstance(value, GinReference):
    return f'@{value}'
  if isinstance(value, list):
    return f'[{", ".join(map(_gin, value))}]'
  if value is None or type(value) in (bool, int, float, str):
    return repr(value)
  raise TypeError(f'{value!r} must be a bool, number, string, None, GinReference or a list of them')


def fill(template: str, **names: object) -> str:
  """Renames placeholders of a template (string arguments) or fills them in (any other argument)."""

  def replacement(match: re.Match) -> str:
    name = names.get(match[1], match[1])
    return f'{{{name}}}' if type(name) is str else _gin(name)

  return re.sub(PLACEHOLDER, replacement, template)


def read_back(template: str, model: object) -> dict[str, Any]:
  """Returns the value of each placeholder of the template in a model.

  Raises:
    AttributeError: the model lacks a module of the template.
  """
  values: dict[str, Any] = {}
  for _, text, value in _walk(template, model):
    if name := re.fullmatch(PLACEHOLDER, text):
      values.setdefault(name[1], value)
  return values


def has_option(template: str, option: str, model: object) -> bool:
  """Returns whether a model matches all bindings of `option`, appended to the template."""
  missing = {
    f'{selector}.{name}' for selector, names in _bindings(option).items() for name in names
  }
  try:
    for binding, text, value in _walk(template + option, model):
      if binding in missing and _matches(text, value):
        missing.remove(binding)
  except AttributeError:
    return False
  return not missing


def is_part(value: object, name: str) -> bool:
  """Returns whether a value of a model is an instance of class `name`, or the function `name`."""
  return value is not None and (type(value).__name__ == name or value is _function(name))


def _function(name: str) -> Any:
  """Returns the object that t2x.layers exports under a name; None: no such name."""
  exported = {entry.name for entry in names_in('t2x.layers')}
  return getattr(layers, name) if name in exported else None


def _matches(text: str, value: object) -> bool:
  """Returns whether a value matches a binding; numbers always match, as the export compares them later."""
  if text.startswith('@'):
    return is_part(value, re.split('[@/]', text.removesuffix('()'))[-1])
  return value is {'True': True, 'False': False, 'None': None}.get(text, value)


def _bindings(template: str) -> dict[str, dict[str, str]]:
  """Returns selector -> parameter -> text of the value."""
  bindings: dict[str, dict[str, str]] = {}
  block = ''
  # A value may be a mapping or list over several lines.
  one_line = re.sub(r'([{[])\n\s*(.*?)\n([}\]])', r'\1\2\3', template, flags=re.DOTALL)
  for line in one_line.splitlines():
    name, equals, text = line.partition(' = ')
    if line.endswith(':'):
      block = line[:-1]
    elif equals:
      full = f'{block}.{name.strip()}' if line.startswith(' ') else name
      selector, _, parameter = full.rpartition('.')
      bindings.setdefault(selector, {})[parameter] = text
  return bindings


def _argument(name: str, part: object) -> Any:
  """Returns the value of the constructor argument `Class.parameter` in a module."""
  return ARGUMENTS.get(name, operator.attrgetter(name.partition('.')[2]))(part)


def _binds(name: str, text: str, part: object) -> bool:
  """Returns whether a binding of the argument `Class.parameter` matches a module."""
  value = _argument(name, part)
  if text.startswith('{') and '@' in text:
    names = re.findall(r'@(\w+)', text)
    return isinstance(value, tuple) and [type(one).__name__ for one in value] == names
  return _matches(text, value)


def _walk(template: str, model: object) -> Iterator[tuple[str, str, Any]]:
  """Yields (binding, text of its value, value in the model) for each binding that applies to the model."""
  bindings = _bindings(template)

  def scoped(value: object) -> str:
    """Returns `scope/Name` of the first scope of class `Name` whose bindings match `value`, or else `Name`."""
    name = type(value).__name__
    for selector, own in bindings.items():
      if selector.endswith(f'/{name}') and all(
        _binds(f'{name}.{parameter}', text, value) for parameter, text in own.items()
      ):
        return selector
    return name

  def visit(reference: str, part: object) -> Iterator[tuple[str, str, Any]]:
    *scopes, name = reference.split('/')
    active: dict[str, tuple[str, str]] = {}
    outer = itertools.accumulate(scopes, '{}/{}'.format)
    for selector in (name, *(f'{scope}/{name}' for scope in outer)):
      active |= {key: (selector, text) for key, text in bindings.get(selector, {}).items()}
    for parameter, (selector, text) in active.items():
      argument = f'{name}.{parameter}'
      value = _argument(argument, part)
      yield f'{selector}.{parameter}', text, value
      values = value if isinstance(value, nnx.List | tuple) else [value]
      # A placeholder has no reference in the template: use the class in the model, in the scope that describes it.
      names = re.findall(r'@([\w/]+)', text) or [scoped(value) for value in values]
      if text.startswith(('[', '{')) and len(names) != len(values):
        raise AttributeError(f'{argument} has {len(values)} parts, not {len(names)}')
      for inner, value in zip(names, values, strict=False):
        # A scope of its own replaces that around it.
        yield from visit(inner if '/' in inner else '/'.join([*scopes, inner]), value)

  yield from visit('Experiment', types.SimpleNamespace(model=model))
