"""The supported families of Hugging Face models."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import shown
from t2x.base.names import domain_modules
from t2x.interop.families.cohere import COHERE
from t2x.interop.families.convolutional import CONVNEXT, RESNET
from t2x.interop.families.decoders import GPT1, GPT2, GPT_NEO, GPT_NEOX, OPT
from t2x.interop.families.dense import (
  GEMMA2,
  GEMMA3,
  LLAMA,
  MISTRAL,
  OLMO2,
  PHI,
  PHI3,
  QWEN2,
  QWEN3,
  SMOLLM3,
)
from t2x.interop.families.dino import DINOV2, DINOV3
from t2x.interop.families.distilbert import DISTILBERT
from t2x.interop.families.encoders import ALBERT, BERT, DEBERTA_V2
from t2x.interop.families.experts import MIXTRAL, QWEN3_MOE
from t2x.interop.families.fairseq import BART, FSMT, MARIAN
from t2x.interop.families.mamba2 import MAMBA2
from t2x.interop.families.modernbert import MODERNBERT
from t2x.interop.families.pyramids import SWIN
from t2x.interop.families.roberta import ROBERTA
from t2x.interop.families.switch import SWITCH
from t2x.interop.families.t5 import T5
from t2x.interop.families.vit import DEIT, VIT
from t2x.interop.families.xlm import XLM
from t2x.interop.family import Family

__all__ = ['FAMILIES', 'family_of']

ALL: tuple[Family, ...] = (
  ALBERT,
  BART,
  BERT,
  COHERE,
  CONVNEXT,
  DEBERTA_V2,
  DEIT,
  DINOV2,
  DINOV3,
  DISTILBERT,
  FSMT,
  GEMMA2,
  GEMMA3,
  GPT1,
  GPT2,
  GPT_NEO,
  GPT_NEOX,
  LLAMA,
)
ALL += (
  MAMBA2,
  MARIAN,
  MISTRAL,
  MIXTRAL,
  MODERNBERT,
  OLMO2,
  OPT,
  PHI,
  PHI3,
  QWEN2,
  QWEN3,
  QWEN3_MOE,
  RESNET,
  ROBERTA,
  SMOLLM3,
  SWIN,
  SWITCH,
  T5,
  VIT,
  XLM,
)


class Families(Mapping[str, Family]):
  """Families by model type: those of this package, then those of the domains, whose files import this package."""

  @functools.cached_property
  def _families(self) -> dict[str, Family]:
    domains = [family for module in domain_modules('interop') for family in module.FAMILIES]
    return {family.model_type: family for family in (*ALL, *domains)}

  def __getitem__(self, key: str) -> Family:
    return self._families[key]

  def __iter__(self) -> Iterator[str]:
    return iter(self._families)

  def __len__(self) -> int:
    return len(self._families)


FAMILIES = Families()


def family_of(config: Mapping[str, Any], where: Path) -> Family:
  """Returns the family of a config.json.

  Raises:
    UserError: the model type is not supported; lists the supported types.
  """
  model_type = config.get('model_type')
  if not isinstance(model_type, str) or model_type not in FAMILIES:
    names = ', '.join(sorted(FAMILIES))
    raise UserError(
      f'{where}: model_type = {shown(model_type)} is not supported; must be one of: {names}'
    )
  return FAMILIES[model_type]
