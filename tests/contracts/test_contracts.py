"""Every part of a block keeps the contracts of the interfaces, or refuses."""

import functools

import pytest

from t2x.contracts import CONTRACTS, Subject
from t2x.errors import UserError

from .parts import PARTS, REFUSED


@functools.cache
def subject(name):
  return Subject(**PARTS[name])


@pytest.mark.parametrize('contract', CONTRACTS)
@pytest.mark.parametrize('name', PARTS)
def test_a_part_keeps_its_contracts(name, contract):
  check, applies = CONTRACTS[contract]
  if contract in REFUSED.get(name, ()):
    with pytest.raises(UserError):
      check(subject(name))
  elif applies(subject(name)):
    check(subject(name))
