"""Reads gin files with gin-config's parser and converts them to plain Python calls.

Names, types and unused bindings are checked before anything is built. No other package depends on gin.
"""

from t2x.config.bindings import *
from t2x.config.loading import *
from t2x.config.parse import *
from t2x.config.registries import *
from t2x.config.rendering import *
from t2x.config.resolve import *
from t2x.config.settings import *
from t2x.config.shipped import *
from t2x.config.trusted import *
from t2x.config.type_check import *
from t2x.config.values import *
