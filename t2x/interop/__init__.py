"""Import and export of Hugging Face model folders."""

from t2x.interop.exporting import *
from t2x.interop.families import *
from t2x.interop.family import *
from t2x.interop.model_folder import *
