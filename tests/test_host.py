"""Allocator and CPU devices are set before jax is imported, unless told otherwise."""

import os
import subprocess
import sys

import pytest

SCRIPT = r'from t2x.host import prepare_host; print("\n".join(prepare_host()))'


def said(script=SCRIPT, **environment):
  """What is told of the allocator and of the devices."""
  ours = ('T2X_ALLOCATOR', 'JAX_NUM_CPU_DEVICES')
  kept = {name: value for name, value in os.environ.items() if name not in ours}
  environment = kept | {'JAX_PLATFORMS': 'cpu', 'LD_PRELOAD': ''} | environment
  command = [sys.executable, '-c', script]
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
  return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != 'linux', reason='glibc is on Linux')
def test_the_allocator_is_set_and_told_with_the_switch():
  allocator = said()[0]
  assert 'one arena' in allocator
  assert 'T2X_ALLOCATOR=off' in allocator


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='no way to take cores away')
def test_there_are_as_many_devices_as_cores():
  one = 'import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});'
  count = '; import jax; print(jax.device_count())'
  assert said(one + SCRIPT + count)[1:] == [
    'devices: 1 on the CPU (JAX_NUM_CPU_DEVICES=1 makes it one)',
    '1',
  ]
  three = 'import os; os.sched_getaffinity = lambda _: {0, 1, 2};'
  assert said(three + SCRIPT + count)[2] == '2'


def test_they_are_left_alone_when_asked_or_pointless():
  assert said(T2X_ALLOCATOR='off')[0] == 'allocator: as it was (T2X_ALLOCATOR=off)'
  assert said(JAX_NUM_CPU_DEVICES='4')[1] == 'devices: as it was (JAX_NUM_CPU_DEVICES=4)'
  for line in said(JAX_PLATFORMS='cuda'):
    assert line.endswith('as it was (an accelerator does the work)')
  for line in said('import jax;' + SCRIPT):
    assert line.endswith('(jax was imported before)')
