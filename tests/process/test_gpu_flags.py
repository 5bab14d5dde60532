"""Flags for NVIDIA GPUs are set before jax starts, and never against the user."""

import os
import subprocess
import sys

import pytest
from jaxlib import xla_client

from t2x.process.gpu_flags import LATENCY_HIDING, VARIABLES, environment_flags

# Two GPUs and jax's plugin for them.
SCRIPT = """
import glob, importlib.util, os, sys
devices = {devices!r}
glob.glob = lambda pattern: devices if pattern.startswith('/dev/nvidia') else []
importlib.util.find_spec = lambda name: name if name == {plugin!r} else None
{first}
from t2x.process.gpu_flags import environment_flags, set_gpu_flags
print(set_gpu_flags())
print(environment_flags())
"""
TWO = ['/dev/nvidia0', '/dev/nvidia1']


def flags(devices=TWO, plugin='jax_cuda12_plugin', first='', **environment):
  """The line for the log, and the variables that are set."""
  ignored = (*VARIABLES, 'JAX_PLATFORMS', 'CUDA_VISIBLE_DEVICES', 'T2X_GPU_FLAGS')
  base = {name: value for name, value in os.environ.items() if name not in ignored}
  script = SCRIPT.format(devices=devices, plugin=plugin, first=first)
  done = subprocess.run(
    [sys.executable, '-c', script],
    env=base | environment,
    capture_output=True,
    text=True,
    check=True,
  )
  return done.stdout.splitlines()


def test_one_gpu_gets_no_flag_of_collectives():
  line, variables = flags(TWO[:1])
  assert variables == 'JAX_OPTIMIZATION_LEVEL=O1 XLA_CLIENT_MEM_FRACTION=0.92'
  assert line == f'GPU flags: {variables} (T2X_GPU_FLAGS=off switches them off)'
  assert flags(CUDA_VISIBLE_DEVICES='1')[1] == variables


def test_several_gpus_hide_latency():
  assert flags()[1].endswith(f'XLA_FLAGS={LATENCY_HIDING}')
  added = flags(XLA_FLAGS='--xla_gpu_autotune_level=0', CUDA_VISIBLE_DEVICES='0,1')[1]
  assert added.endswith(f'XLA_FLAGS=--xla_gpu_autotune_level=0 {LATENCY_HIDING}')


@pytest.mark.parametrize(
  'own',
  [
    {'JAX_OPTIMIZATION_LEVEL': 'O0', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.3'},
    {'JAX_OPTIMIZATION_LEVEL': 'O0', 'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'},
  ],
  ids=['fraction', 'preallocate'],
)
def test_flags_set_by_the_user_are_unchanged(own):
  own['XLA_FLAGS'] = '--xla_gpu_enable_latency_hiding_scheduler=false'
  line, variables = flags(**own)
  assert variables == ' '.join(f'{name}={value}' for name, value in own.items())
  assert 'all set by the user' in line


@pytest.mark.parametrize(
  ('settings', 'reason'),
  [
    ({'T2X_GPU_FLAGS': 'off'}, 'T2X_GPU_FLAGS=off'),
    ({'JAX_PLATFORMS': 'cpu'}, 'JAX_PLATFORMS=cpu'),
    ({'devices': []}, 'no NVIDIA GPU'),
    ({'CUDA_VISIBLE_DEVICES': '-1'}, 'no NVIDIA GPU'),
    ({'plugin': None}, 'plugin is not installed'),
    ({'first': 'sys.modules["jax"] = None'}, 'already imported'),
  ],
)
def test_flags_without_effect_are_not_set(settings, reason):
  line, *variables = flags(**settings)
  assert line.startswith('GPU flags: unchanged') and reason in line
  assert variables == ['']


def test_jax_knows_every_variable(monkeypatch):
  """XLA ends a process that sets a flag that it does not have."""
  environment = {
    'XLA_FLAGS': LATENCY_HIDING,
    'JAX_OPTIMIZATION_LEVEL': 'O1',
    'JAX_PLATFORMS': 'cpu',
  }
  script = 'import jax; jax.devices(); print(jax.config.jax_optimization_level)'
  done = subprocess.run(
    [sys.executable, '-c', script], env=os.environ | environment, capture_output=True, text=True
  )
  assert done.stdout.strip() == 'O1', done.stderr
  monkeypatch.delenv('XLA_PYTHON_CLIENT_MEM_FRACTION', raising=False)
  monkeypatch.setenv('XLA_CLIENT_MEM_FRACTION', '0.92')
  assert xla_client.generate_pjrt_gpu_plugin_options()['memory_fraction'] == 0.92
  assert 'XLA_CLIENT_MEM_FRACTION=0.92' in environment_flags()
