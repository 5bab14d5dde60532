"""Gin files -> checked plain Python calls: the only code that knows gin. Files are read by
gin-config's parser; names, types and use are checked before anything is built."""

from t2x.config.diff import diff
from t2x.config.load import Config, load
from t2x.config.parse import Import, Statement, parse_files
from t2x.config.registry import Registry
from t2x.config.render import render, show
from t2x.config.resolve import Argument, Call, Shared, calls
from t2x.config.values import COMMAND_LINE, Finding, Macro, Place, Reference

__all__ = [
  'COMMAND_LINE',
  'Argument',
  'Call',
  'Config',
  'Finding',
  'Import',
  'Macro',
  'Place',
  'Reference',
  'Registry',
  'Shared',
  'Statement',
  'calls',
  'diff',
  'load',
  'parse_files',
  'render',
  'show',
]
