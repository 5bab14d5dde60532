"""Rotary positions in config.json: `rope_parameters` of newer files, `rope_scaling` and a base of older ones."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t2x.external_files import REQUIRED, Choice, Field, Fields, Float, Int, Object
from t2x.interop.family import positive, refuse_unread

# Kind of scaling -> the text that adds it to a template.
SCALINGS: Mapping[str, str] = {
  'linear': """
RoPE.scaling = @LinearScaling()
LinearScaling.factor = {factor}
""",
  'llama3': """
RoPE.scaling = @Llama3Scaling()
Llama3Scaling:
  factor = {factor}
  max_length = {original_max_position_embeddings}
  low_frequency = {low_freq_factor}
  high_frequency = {high_freq_factor}
""",
  'default': '',
}
FACTORS: Mapping[str, Mapping[str, Field]] = {
  'linear': {'factor': positive(REQUIRED)},
  'llama3': {
    'factor': positive(REQUIRED),
    'high_freq_factor': positive(REQUIRED),
    'low_freq_factor': positive(REQUIRED),
    'original_max_position_embeddings': Int(REQUIRED, 1),
  },
  'default': {},
}
KIND = Choice(None, SCALINGS)


@dataclasses.dataclass(frozen=True)
class Rope:
  """The fields of a family for its rotary positions; `Family.choices` has 'rope_type': `SCALINGS`.

  Attributes:
    base: the field of older files for the base.
    fraction: the one for the part of each head that is rotated; '': all of it is.
    default: the default of the fraction.
  """

  base: str
  fraction: str = ''
  default: float = 1.0

  @property
  def template(self) -> str:
    """The encoding and its settings."""
    text = f'Decoder.encoding = @RoPE\nRoPE.base = {{{self.base}}}\n'
    return f'{text}RoPE.fraction = {{{self.fraction}}}\n' if self.fraction else text

  @property
  def declared(self) -> dict[str, Field]:
    """The fields by name."""
    fields = {'rope_parameters': Object(None), 'rope_scaling': Object(None)}
    fraction = {self.fraction: positive(self.default, 1.0)} if self.fraction else {}
    return {**fields, self.base: positive(10000.0), **fraction}

  def derive(self, fields: Fields) -> dict[str, Any]:
    """The values of the template and of `SCALINGS`."""
    name = 'rope_parameters' if fields['rope_parameters'] else 'rope_scaling'
    given, where = fields[name] or {}, f'{fields.where}: {name}'
    declared = {'rope_theta': positive(None), 'rope_type': KIND, 'type': KIND}
    if self.fraction:
      declared['partial_rotary_factor'] = Float(None, 0.0, 1.0, excluded=0.0)
    rope = Fields(given, declared, where)
    kind = rope['rope_type'] or rope['type'] or 'default'
    refuse_unread(given, [*declared, *FACTORS[kind]], where)
    values = {**Fields(given, FACTORS[kind], where), 'rope_type': kind}
    values[self.base] = rope['rope_theta'] or fields[self.base]
    if self.fraction:
      # As transformers does it: a whole number of features, rounded down.
      head_dim = max(fields['hidden_size'] // fields['num_attention_heads'], 1)
      size = int(head_dim * (rope['partial_rotary_factor'] or fields[self.fraction]))
      values[self.fraction] = size / head_dim
    return values

  def restore(self, values: dict[str, Any]) -> dict[str, Any]:
    """The values read back from a model, with the scaling as older files have it."""
    kind = values['rope_type']
    factors = {name: values[name] for name in FACTORS[kind]}
    return {**values, 'rope_scaling': {'rope_type': kind, **factors} if factors else None}
