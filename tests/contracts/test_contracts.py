"""Every part of a block keeps the contracts of the interfaces, or refuses."""

import dataclasses
import functools
import json

import jax.numpy as jnp
import pytest
from contract_parts import PARTS
from contract_refusals import REFUSED
from eight_devices import run_on_eight_devices

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers import MLP, FeedForward, MultiHeadAttention, Result, dropout
from t2x.testing.contracts import CONTRACTS, settings_change_something
from t2x.testing.subject import ContractViolation, Subject

OFTEN = [
  'attention with grouped heads and rotary positions',
  'lightweight convolution',
  'linear attention',
  'Linformer',
  'mixture of experts',
  'MLP',
]
RARELY = [name for name in PARTS if name not in OFTEN]


@functools.cache
def subject(name):
  return Subject(**PARTS[name])


@pytest.mark.parametrize('contract', CONTRACTS)
@pytest.mark.parametrize(
  'name', [*OFTEN, *(pytest.param(name, marks=pytest.mark.nightly) for name in RARELY)]
)
def test_a_part_keeps_its_contracts(name, contract):
  if contract in REFUSED.get(name, ()):
    with pytest.raises(UserError):
      CONTRACTS[contract].check(subject(name))
  elif CONTRACTS[contract].applies(subject(name)):
    CONTRACTS[contract].check(subject(name))


@pytest.mark.nightly
@pytest.mark.timeout(1860)
def test_eight_devices_change_neither_outputs_nor_gradients():
  """In a process of its own, whose CPU is split into eight devices."""
  code = 'import contract_devices; contract_devices.print_outcomes_on_devices()'
  done = run_on_eight_devices(code, seconds=1800)
  found = json.loads(done.stdout.splitlines()[-1])
  broken = found.pop('a gradient that counts devices')
  assert broken.startswith('failed: the gradient of ') and 'on data 8 devices' in broken
  assert found == dict.fromkeys(PARTS, 'passed')


class Averaging(FeedForward):
  """Averages all tokens and does not say so."""

  def __init__(self, d_model, *, rngs):
    self.mlp = MLP(d_model, hidden_dim=8, rngs=rngs)

  def __call__(self, x, call, cache=None):
    return dataclasses.replace(self.mlp(x, call), x=x + x.mean(axis=1, keepdims=True))


class Batched(FeedForward):
  """Normalises over the batch."""

  def __init__(self, d_model, *, rngs):
    self.mlp = MLP(d_model, hidden_dim=8, rngs=rngs)

  def __call__(self, x, call, cache=None):
    result = self.mlp(x, call)
    return dataclasses.replace(result, x=result.x - result.x.mean(axis=0))


class BatchMask(FeedForward):
  """Draws one mask for the batch instead of one for each row."""

  def __init__(self, d_model, *, rngs):
    self.mlp = MLP(d_model, hidden_dim=8, rngs=rngs)

  def __call__(self, x, call, cache=None):
    result = self.mlp(x, call)
    key = None if call.key is None else call.key[0]
    return dataclasses.replace(result, x=dropout(result.x, 0.5, key))


class Acausal(MultiHeadAttention):
  """Ignores the pattern and the padding."""

  def __call__(self, x, call, cache=None):
    result = super().__call__(x, call, cache)
    return dataclasses.replace(result, x=result.x + x.mean(axis=1, keepdims=True))


class Wide(FeedForward):
  """Returns float32 whatever it is given."""

  def __init__(self, d_model, *, rngs):
    self.mlp = MLP(d_model, hidden_dim=8, rngs=rngs)

  def __call__(self, x, call, cache=None):
    result = self.mlp(x, call)
    return dataclasses.replace(result, x=result.x.astype(jnp.float32))


class Faint(FeedForward):
  """Returns small outputs, of which 2 % are of other tokens."""

  def __init__(self, d_model, *, rngs):
    self.mlp = MLP(d_model, hidden_dim=8, rngs=rngs)

  def __call__(self, x, call, cache=None):
    y = 1e-4 * self.mlp(x, call).x
    return Result(y + 0.02 * y.mean(axis=1, keepdims=True))


class Forgetful(FeedForward):
  """Ignores two of its settings."""

  def __init__(
    self,
    d_model,
    *,
    hidden_dim: Size = 8,
    window: Size = 3,
    scaled: bool = False,
    scale: float | None = None,
    rngs,
  ):
    self.mlp = MLP(d_model, hidden_dim=hidden_dim, rngs=rngs)
    self.scale = scale

  def __call__(self, x, call, cache=None):
    return Result(self.mlp(x, call).x * (1.0 if self.scale is None else self.scale))


@pytest.mark.parametrize(
  ('build', 'broken'),
  [
    (Faint, {'tokens are independent', 'padding is not read'}),
    (Forgetful, {'settings change something'}),
    (
      Averaging,
      {'tokens are independent', 'padding is not read', 'packed rows equal separate rows'},
    ),
    (Batched, {'rows are independent'}),
    (BatchMask, {'rows are independent'}),
    (
      functools.partial(Acausal, num_heads=2),
      {'outputs ignore later tokens', 'padding is not read'},
    ),
    (Wide, {'bfloat16 is close'}),
  ],
)
def test_a_part_that_breaks_a_contract_is_caught(build, broken):
  for name in broken:
    with pytest.raises(ContractViolation):
      CONTRACTS[name].check(Subject(build))


def test_dropped_settings_are_named_and_no_others():
  with pytest.raises(ContractViolation, match=r'^window, scaled changed nothing$'):
    settings_change_something(Subject(Forgetful))
