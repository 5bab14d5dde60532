"""What a training step copies from the device."""

import contextlib

import jax
import jax.numpy as jnp


def test_a_step_copies_nothing_from_the_device_implicitly(experiment, t2x, tmp_path, monkeypatch):
  # The transfer guard of the loop has no effect on CPUs: there, an implicit copy is made to fail.
  guarded, copies = [], []
  guard, array = jax.transfer_guard_device_to_host, type(jnp.zeros(()))
  value, device_get = array._value, jax.device_get

  @contextlib.contextmanager
  def noted(level):
    guarded.append(level)
    with guard(level):
      yield
    guarded.append('')

  def read(self):
    if guarded[-1:] == ['disallow']:
      copies.append(self.shape)
    return value.fget(self)

  def explicit(tree):
    guarded.append('explicit')
    try:
      return device_get(tree)
    finally:
      guarded.pop()

  monkeypatch.setattr(jax, 'transfer_guard_device_to_host', noted)
  monkeypatch.setattr(array, '_value', property(read))
  monkeypatch.setattr(jax, 'device_get', explicit)
  config = experiment(
    'causal_lm', 'Trainer:\n  num_steps = 4\n  log_every = 1\n  checkpoint_every = 0\n'
  )
  code, _, err = t2x('train', config, '--out', tmp_path / 'run')
  assert code == 0, err
  assert guarded.count('disallow') == 4
  assert copies == []
  with noted('disallow'):
    float(jnp.ones(()))
  assert copies == [()]
