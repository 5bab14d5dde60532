"""Types of command-line arguments."""

import argparse
import typing
from collections.abc import Callable
from typing import Any


def in_range(hint: object) -> Callable[[str], Any]:
  """Returns an argparse type for numbers of a type in `t2x.base.ranges`."""
  kind, limits = typing.get_args(hint)

  def parse(text: str) -> Any:
    try:
      value = kind(text)
    except ValueError:
      what = 'a number' if kind is float else 'an integer'
      raise argparse.ArgumentTypeError(f'must be {what}, got {text!r}') from None
    if not limits.holds(value):
      raise argparse.ArgumentTypeError(f'{limits}, got {text}')
    return value

  return parse
