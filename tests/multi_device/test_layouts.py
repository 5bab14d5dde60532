"""Eight fake devices follow the single device, whatever the layout (all in one other process)."""

import json
from pathlib import Path

import pytest
from eight_devices import run_on_eight_devices

SCRIPT = Path(__file__).with_name('layouts.py')
TOLERANCE = 1e-5
# All are compiled in one process: a minute and a half on two idle cores, far more on busy ones.
SECONDS = 1500
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 60)]


def apart(losses, expected):
  """The largest relative difference of two series of losses."""
  return max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))


# One experiment with every commit, all of them every night.
@pytest.fixture(
  scope='module',
  params=[['causal_lm'], pytest.param([], marks=pytest.mark.nightly)],
  ids=['causal_lm', 'all'],
)
def told(tmp_path_factory, request):
  folder = tmp_path_factory.mktemp('layouts')
  done = run_on_eight_devices(
    SCRIPT,
    folder,
    *request.param,
    seconds=SECONDS,
    T2X_CACHE=str(folder / 'cache'),
    # A program that is read from the cache has no warnings.
    JAX_ENABLE_COMPILATION_CACHE='false',
  )
  return json.loads(done.stdout) | {'warnings': copies(done.stderr)}


def copies(stderr):
  """Warnings of arrays that a device computes in full, with the line of the layout, which follows after training."""
  found, pending = [], []
  for line in stderr.splitlines():
    # jax 0.12 also warns of ways to split a gather that its compiler compares and does not use.
    if 'Involuntary full remat' in line and 'HLO operation %fake_parameter' not in line:
      pending.append(line)
    elif line.endswith(' s'):
      found += [f'{line}: {one}' for one in pending]
      pending = []
  return found + pending


def test_no_layout_computes_a_whole_array_on_each_device(told):
  assert not told['warnings']


def test_layouts_follow_the_single_device(told, add_row):
  """Twenty steps with dropout: randomness does not depend on the layout either."""
  found = {
    name: {mesh: apart(losses, meshes['single']) for mesh, losses in meshes.items()}
    for name, meshes in told['losses'].items()
  }
  for name, row in found.items():
    cells = {mesh: f'{value:.1e}' for mesh, value in row.items()}
    add_row('largest relative difference of 20 losses', name, cells)
    assert set(row) >= {'fsdp', 'fsdp_tensor', 'context'}
    losses = told['losses'][name]['single']
    assert min(losses) < losses[0], 'nothing is learnt: any layout would do'
    for mesh, value in row.items():
      assert value <= TOLERANCE, (name, mesh, value)


def test_initial_values_do_not_depend_on_the_layout(told):
  assert {'causal_lm, fsdp', 'causal_lm, fsdp_tensor'} <= set(told['initial'])
  assert set(told['initial'].values()) == {0.0}, told['initial']


def test_evaluation_does_not_depend_on_the_layout(told):
  for name, meshes in told['evaluations'].items():
    for mesh, loss in meshes.items():
      assert abs(loss - meshes['single']) <= TOLERANCE * abs(meshes['single']), (name, mesh)


def test_a_checkpoint_is_resumed_on_another_mesh(told):
  """Saved on data 2 x fsdp 4; that the parameters are bitwise the same is checked over there."""
  restored = told['restored']
  for name in ('fsdp 2 x tensor 2', 'one device'):
    assert len(restored[name]) == 10
    assert apart(restored[name], restored['saved']) <= TOLERANCE, name


def test_no_device_makes_the_whole_state(told):
  """Parameters are born sharded: making them takes a device less than the model's own size."""
  here, whole = told['born']
  assert here < whole, told['born']


def test_blockwise_attention_is_right_where_the_length_is_split(told):
  assert max(told['blockwise'].values()) <= TOLERANCE, told['blockwise']
