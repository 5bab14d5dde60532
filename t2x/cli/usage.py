"""Suggestions for command lines that argparse refuses."""

import argparse
from collections.abc import Sequence

from t2x.base.suggestions import did_you_mean

# Names of other programs for settings of t2x.
_OTHER_NAMES = {
  'lr': 'Cosine.peak',
  'learning_rate': 'Cosine.peak',
  'warmup_ratio': 'Cosine.warmup',
  'warmup_steps': 'Cosine.warmup_steps',
  'weight_decay': 'AdamW.weight_decay',
  'steps': 'Trainer.num_steps',
  'max_steps': 'Trainer.num_steps',
  'train_steps': 'Trainer.num_steps',
  'bs': 'Trainer.batch_size',
  'gradient_accumulation_steps': 'Trainer.accumulate',
  'max_grad_norm': 'Trainer.clip_norm',
  'grad_clip': 'Trainer.clip_norm',
  'dtype': 'Trainer.compute_dtype',
  'layers': 'num_layers',
}


class Parser(argparse.ArgumentParser):
  """A parser that suggests similar names for those that do not exist."""

  def _check_value(self, action: argparse.Action, value: object) -> None:
    if action.choices is not None and value not in action.choices:
      names = [*map(str, action.choices)]
      guess = did_you_mean(str(value), names) or f'; expected {", ".join(names)}'
      raise argparse.ArgumentError(action, f'{value!r} does not exist{guess}')


def unknown(
  arguments: Sequence[str], command: argparse.ArgumentParser, takes_bindings: bool
) -> str:
  """Returns why arguments are refused, with a suggestion for the first one.

  Args:
    arguments: the arguments that no option takes.
    command: the parser of the command.
    takes_bindings: whether the command accepts `--gin.` bindings.
  """
  first, *others = arguments
  message = f'unrecognized arguments: {" ".join(arguments)}'
  name, equals, value = first.lstrip('-').partition('=')
  if takes_bindings and (setting := _setting(name, is_option=first.startswith('-'))):
    if not equals:
      value = next((text for text in others if not text.startswith('-')), 'VALUE')
    return f'{message}; did you mean --gin.{setting}={value}?'
  options = (option for action in command._actions for option in action.option_strings)
  names = [option.lstrip('-') for option in options if option.startswith('--')]
  guess = did_you_mean(name, names, '--{}') if first.startswith('-') else ''
  if not guess and takes_bindings:
    guess = '; settings of the config are --gin.NAME=VALUE'
  return message + guess


def _setting(name: str, is_option: bool) -> str:
  """Returns the setting that an argument probably means; '' if it means none."""
  if '.' in name:
    return name
  if not is_option:
    return ''
  from t2x.train import Trainer

  plain = name.replace('-', '_')
  fields = {field: f'Trainer.{field}' for field in Trainer.__dataclass_fields__}
  macros = {macro: macro for macro in ('d_model', 'num_layers', 'vocab_size', 'dropout_rate')}
  return (fields | macros | _OTHER_NAMES).get(plain, '')
