"""The supported families of Hugging Face models, one file per family."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import shown
from t2x.interop.families.albert import ALBERT
from t2x.interop.families.bart import BART
from t2x.interop.families.bert import BERT
from t2x.interop.families.deberta_v2 import DEBERTA_V2
from t2x.interop.families.fsmt import FSMT
from t2x.interop.families.gpt1 import GPT1
from t2x.interop.families.gpt2 import GPT2
from t2x.interop.families.gpt_neo import GPT_NEO
from t2x.interop.families.gpt_neox import GPT_NEOX
from t2x.interop.families.llama import LLAMA
from t2x.interop.families.marian import MARIAN
from t2x.interop.families.opt import OPT
from t2x.interop.families.t5 import T5
from t2x.interop.families.vit import VIT
from t2x.interop.families.xlm import XLM
from t2x.interop.family import Family

__all__ = ['FAMILIES', 'family_of']

FAMILIES: Mapping[str, Family] = {
  family.model_type: family
  for family in (
    ALBERT,
    BART,
    BERT,
    DEBERTA_V2,
    FSMT,
    GPT1,
    GPT2,
    GPT_NEO,
    GPT_NEOX,
    LLAMA,
    MARIAN,
    OPT,
    T5,
    VIT,
    XLM,
  )
}


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
