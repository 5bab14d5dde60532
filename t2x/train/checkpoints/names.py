"""Names of arrays that earlier versions of t2x saved."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Arrays = Mapping[str, Any]

# `SwitchFeedForward` before it became a mixture of MLPs: only it had a parameter with the name 'router'.
_SWITCH = {'router': 'router.kernel', 'up': 'expert.up.kernel', 'down': 'expert.down.kernel'}


def saved_names(saved: Iterable[str]) -> dict[str, str]:
  """Returns the saved name of each array by its current name."""
  saved = list(saved)
  switches = {name.removesuffix('router') for name in saved if name.endswith('.router')}

  def current(name: str) -> str:
    parent, dot, last = name.rpartition('.')
    return f'{parent}.{_SWITCH.get(last, last)}' if parent + dot in switches else name

  return {current(name): name for name in saved}


def read_renamed(
  read: Callable[[Arrays], Arrays], abstract: Arrays, saved: Iterable[str]
) -> dict[str, Any]:
  """Reads arrays by their current names.

  Args:
    read: reads the arrays of a tree like its argument by their saved names.
    abstract: the arrays to read by their current names.
    saved: all saved names.
  """
  names = saved_names(saved)
  arrays = read({names.get(name, name): leaf for name, leaf in abstract.items()})
  return {name: arrays[names.get(name, name)] for name in abstract}
