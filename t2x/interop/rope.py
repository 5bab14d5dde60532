"""Rotary position embeddings in config.json: `rope_parameters` in new files, `rope_scaling` and a base in old
files."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t2x.base.external_files import REQUIRED, Choice, Field, Fields, Float, Int, Object
from t2x.interop.family import check_unread_fields, positive

# Scaling type -> gin text that is added to the template.
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
  """The rotary position fields of a family; its `Family.choices` must contain 'rope_type': `SCALINGS`.

  Attributes:
    base: name of the base field in old files.
    fraction: name of the field for the rotated fraction of each head; '': the entire head is rotated.
    default: default of the fraction.
    base_default: default of the base.
    part: the part that has the encoding.
    local: name of the field for the base of `local/Block` in old files; new ones have `rope_parameters` for each kind
      of layer, of which only the full layers have scaled positions. '': all layers have the same positions.
    local_default: default of that base.
  """

  base: str = 'rope_theta'
  fraction: str = ''
  default: float = 1.0
  base_default: float = 10000.0
  part: str = 'Decoder'
  local: str = ''
  local_default: float = 10000.0

  @property
  def template(self) -> str:
    """The gin text of the position encoding."""
    text = f'{self.part}.encoding = @RoPE\nRoPE.base = {{{self.base}}}\n'
    if self.fraction:
      text += f'RoPE.fraction = {{{self.fraction}}}\n'
    return text

  @property
  def local_template(self) -> str:
    """The gin text of the position encoding of `local/Block`."""
    return f'local/RoPE:\n  base = {{{self.local}}}\n  scaling = None\n' if self.local else ''

  @property
  def declared(self) -> dict[str, Field]:
    """The fields of config.json by name."""
    fields = {'rope_parameters': Object(None), 'rope_scaling': Object(None)}
    fraction = {self.fraction: positive(self.default, 1.0)} if self.fraction else {}
    local = {self.local: positive(self.local_default)} if self.local else {}
    return {**fields, self.base: positive(self.base_default), **fraction, **local}

  def derive(self, fields: Fields) -> dict[str, Any]:
    """Returns the values of the template and of `SCALINGS`."""
    # As in transformers, whose older field wins.
    name = 'rope_scaling' if fields['rope_scaling'] else 'rope_parameters'
    objects, where, values = fields[name] or {}, f'{fields.where}: {name}', {}
    if self.local and name == 'rope_parameters':
      declared = {'full_attention': Object(None), 'sliding_attention': Object(None)}
      check_unread_fields(objects, [*declared], where)
      kinds = Fields(objects, declared, where)
      local = self._read(kinds['sliding_attention'] or {}, f'{where}.sliding_attention', fields)
      if local['rope_type'] != 'default':
        raise fields.refused(f'{name}.sliding_attention.rope_type', local['rope_type'], "'default'")
      values[self.local] = local['rope_theta'] or fields[self.local]
      objects, where = kinds['full_attention'] or {}, f'{where}.full_attention'
    values |= self._read(objects, where, fields)
    values[self.base] = values.pop('rope_theta') or fields[self.base]
    return values

  def _read(self, objects: Mapping[str, Any], where: str, fields: Fields) -> dict[str, Any]:
    """Returns the values of one object; None as `rope_theta` if it has none."""
    declared: dict[str, Field] = {
      'rope_theta': positive(None),
      'rope_type': KIND,
      'type': KIND,
    }
    if self.fraction:
      declared['partial_rotary_factor'] = Float(None, 0.0, 1.0, excluded=0.0)
    rope = Fields(objects, declared, where)
    kind = rope['rope_type'] or rope['type'] or 'default'
    check_unread_fields(objects, [*declared, *FACTORS[kind]], where)
    values = {**Fields(objects, FACTORS[kind], where), 'rope_type': kind}
    if self.fraction:
      # transformers rounds the number of rotated features down.
      head_dim = max(fields['hidden_size'] // fields['num_attention_heads'], 1)
      size = int(head_dim * (rope['partial_rotary_factor'] or fields[self.fraction]))
      values[self.fraction] = size / head_dim
    return values | {'rope_theta': rope['rope_theta']}

  def restore(self, values: dict[str, Any]) -> dict[str, Any]:
    """Adds the `rope_scaling` of old files to the values read back from a model."""
    kind = values['rope_type']
    factors = {name: values[name] for name in FACTORS[kind]}
    return {**values, 'rope_scaling': {'rope_type': kind, **factors} if factors else None}
