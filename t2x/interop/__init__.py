"""Import and export of Hugging Face model folders."""

from t2x.interop.export import export
from t2x.interop.families import FAMILIES
from t2x.interop.family import Family
from t2x.interop.model_folder import HFModel

__all__ = ['FAMILIES', 'Family', 'HFModel', 'export']
