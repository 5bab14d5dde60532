"""The families that are known, one small file each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2x.errors import UserError
from t2x.interop.families.albert import ALBERT
from t2x.interop.families.bart import BART
from t2x.interop.families.bert import BERT
from t2x.interop.families.gpt2 import GPT2
from t2x.interop.families.llama import LLAMA
from t2x.interop.families.t5 import T5
from t2x.interop.families.vit import VIT
from t2x.interop.families.xlm import XLM
from t2x.interop.family import Family

__all__ = ['FAMILIES', 'family_of']

FAMILIES: Mapping[str, Family] = {
  family.model_type: family for family in (ALBERT, BART, BERT, GPT2, LLAMA, T5, VIT, XLM)
}


def family_of(config: Mapping[str, Any], where: Path) -> Family:
  """The family of a config.json.

  Raises:
    UserError: it is none of those known, which are named.
  """
  model_type = str(config.get('model_type'))
  if model_type not in FAMILIES:
    known = ', '.join(sorted(FAMILIES))
    raise UserError(f'{where}: model_type {model_type!r} is not known; these are: {known}')
  return FAMILIES[model_type]
