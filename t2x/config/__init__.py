"""Reads gin files with gin-config's parser and converts them to plain Python calls.

Names, types and unused bindings are checked before anything is built. No other package depends on gin.
"""

from t2x.config.bindings import did_you_mean, split_scope
from t2x.config.load import Config, load, registry
from t2x.config.parse import GinText, Statement, expanded, macros_in, parse_files
from t2x.config.registry import Registry
from t2x.config.render import (
  canonical,
  diff,
  differences,
  hyperparameters,
  identity,
  parameters_with,
  render,
  show,
)
from t2x.config.resolve import calls, key_of
from t2x.config.trust import trust, trust_everything
from t2x.config.type_check import problem
from t2x.config.values import COMMAND_LINE, Finding, Macro, gin_of, raise_findings, to_gin

__all__ = [
  'COMMAND_LINE',
  'Config',
  'Finding',
  'GinText',
  'Macro',
  'Registry',
  'Statement',
  'calls',
  'canonical',
  'did_you_mean',
  'diff',
  'differences',
  'expanded',
  'gin_of',
  'hyperparameters',
  'identity',
  'key_of',
  'load',
  'macros_in',
  'parameters_with',
  'parse_files',
  'problem',
  'raise_findings',
  'registry',
  'render',
  'show',
  'split_scope',
  'to_gin',
  'trust',
  'trust_everything',
]
