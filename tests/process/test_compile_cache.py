"""The compilation cache is on for commands, and a second process loads what the first compiled."""

import os
import subprocess
import sys

SET = """
from t2x.process.compile_cache import set_compile_cache
print(set_compile_cache())
"""
SCRIPT = f"""{SET}
import jax
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
jax.jit(lambda x: x @ x.T + 1)(jax.numpy.ones((8, 8)))
print(sum('cache_hits' in hit for hit in hits))
"""


def lines(folder, script=SCRIPT, **environment):
  prefixes = ('JAX_COMPILATION_CACHE', 'JAX_PERSISTENT_CACHE', 'T2X_COMPILE_CACHE')
  base = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
  environment = base | {'JAX_PLATFORMS': 'cpu', 'T2X_CACHE': str(folder)} | environment
  done = subprocess.run(
    [sys.executable, '-c', script], env=environment, capture_output=True, text=True, check=True
  )
  return done.stdout.splitlines()


def test_a_second_process_compiles_nothing(tmp_path):
  line, counts = lines(tmp_path)
  assert line == f'compile cache: {tmp_path}/compiled (T2X_COMPILE_CACHE=off switches it off)'
  assert int(counts) == 0
  programs = {path.name for path in (tmp_path / 'compiled').glob('*-cache')}
  assert programs
  assert int(lines(tmp_path)[1]) >= len(programs)
  assert {path.name for path in (tmp_path / 'compiled').glob('*-cache')} == programs


def test_the_cache_is_unchanged_when_switched_off_set_or_too_late(tmp_path):
  assert lines(tmp_path, SET, T2X_COMPILE_CACHE='off')[0].endswith('off (T2X_COMPILE_CACHE=off)')
  own = lines(tmp_path, SET, JAX_COMPILATION_CACHE_DIR=str(tmp_path / 'own'))[0]
  assert own == f'compile cache: {tmp_path}/own (JAX_COMPILATION_CACHE_DIR)'
  assert 'unchanged' in lines(tmp_path, 'import sys; sys.modules["jax"] = sys;' + SET)[0]
  assert not (tmp_path / 'compiled').exists()
