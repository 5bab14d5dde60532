"""The contract on devices for every part, in a process with eight devices."""

import dataclasses
import functools
import json

import jax
from contract_parts import PARTS

from t2x.layers import MLP
from t2x.layers.constraints import num_parts
from t2x.testing.contracts import ContractViolation, devices_change_nothing
from t2x.testing.subject import Subject


@jax.custom_vjp
def counted(x):
  """The identity, with a gradient that is multiplied by the number of parts of the batch."""
  return x


counted.defvjp(lambda x: (x, None), lambda _, gradient: (num_parts('batch') * gradient,))


class DeviceCount(MLP):
  """An MLP whose gradient depends on the mesh, and whose output does not."""

  def __call__(self, x, call, cache=None):
    result = super().__call__(x, call, cache)
    return dataclasses.replace(result, x=counted(result.x))


def print_outcomes_on_devices():
  """Prints the outcome of the contract on devices for every part and for a broken one, as JSON."""
  outcomes = {}
  broken = {
    'a gradient that counts devices': {'build': functools.partial(DeviceCount, hidden_dim=24)}
  }
  for name, build in (PARTS | broken).items():
    try:
      devices_change_nothing(Subject(**build))
      outcomes[name] = 'passed'
    except ContractViolation as error:
      outcomes[name] = f'failed: {error}'
  print(json.dumps(outcomes))
