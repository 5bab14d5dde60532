"""Weights in and out of other people's formats: Hugging Face folders of safetensors."""

from t2x.interop.export import export
from t2x.interop.families import FAMILIES
from t2x.interop.family import Family
from t2x.interop.model_folder import Source

__all__ = ['FAMILIES', 'Family', 'Source', 'export']
