"""Ring attention on eight fake devices (a process of its own) against kernels on one device."""

import json
from pathlib import Path

import pytest
from eight_devices import run_on_eight_devices

SCRIPT = Path(__file__).with_name('ring.py')
TOLERANCE = 2e-6
# One rounding, of about 0.4 % each, in both of two layers.
BFLOAT16_TOLERANCE = 1e-2


def outcomes(*names):
  return json.loads(run_on_eight_devices(SCRIPT, *names).stdout)


def moved_along_rows(collectives):
  """Bytes by kind of collective, of those over the devices that split the rows."""
  found = {}
  for name, (_, size) in collectives.items():
    kind, *axes = name.split()
    if 'context' in axes:
      found[kind] = found.get(kind, 0) + size
  return found


def check(case, name):
  limit = BFLOAT16_TOLERANCE if name == 'bfloat16' else TOLERANCE
  assert case['difference'] <= limit, name
  moved = moved_along_rows(case['collectives'])
  # Gradients of position terms and of sinks are summed, keys and values only sent.
  assert set(moved) <= {'collective-permute', 'all-reduce'}, name
  assert moved.get('all-reduce', 0) < 1000, name


@pytest.mark.slow
def test_ring_attention_equals_dense_attention():
  """With packed rows, grouped heads, a soft cap, sinks and a learned bias, on a mesh with other axes."""
  name = 'causal, packed, all features'
  check(outcomes(name)[name], name)


@pytest.mark.nightly
def test_all_cases(add_row):
  cases = outcomes()
  for name, case in cases.items():
    add_row(
      'largest difference; bytes moved',
      name,
      {
        'difference': f'{case["difference"]:.1e}',
        'bytes': str(moved_along_rows(case['collectives'])),
      },
    )
    check(case, name)
  sent = {
    name: moved_along_rows(case['collectives']).get('collective-permute', 0)
    for name, case in cases.items()
  }
  # A window of 10 tokens reaches into one other part of 16: one of three is sent.
  assert sent['window'] < 0.4 * sent['full']
