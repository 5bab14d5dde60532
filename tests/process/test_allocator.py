"""The allocator is set before jax is imported, unless told otherwise."""

import os
import subprocess
import sys

import pytest

SCRIPT = 'from t2x.process.allocator import set_allocator; print(set_allocator())'


def said(script=SCRIPT, **environment):
  command = [sys.executable, '-c', script]
  kept = {name: value for name, value in os.environ.items() if name != 'T2X_ALLOCATOR'}
  environment = kept | {'JAX_PLATFORMS': 'cpu', 'LD_PRELOAD': ''} | environment
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
  return done.stdout.strip()


@pytest.mark.skipif(sys.platform != 'linux', reason='glibc is on Linux')
def test_the_allocator_is_set_and_reported_with_the_switch():
  assert 'one arena' in said()
  assert 'T2X_ALLOCATOR=off' in said()


def test_the_allocator_is_unchanged_when_switched_off_or_without_effect():
  assert said(T2X_ALLOCATOR='off') == 'allocator: unchanged (T2X_ALLOCATOR=off)'
  assert said(JAX_PLATFORMS='cuda') == 'allocator: unchanged (not on a CPU)'
  assert (
    said('import sys; sys.modules["jax"] = sys;' + SCRIPT)
    == 'allocator: unchanged (jax is already imported)'
  )
