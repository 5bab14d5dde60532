"""Collectives are found with their mesh axes and bytes, against programs whose collectives are known."""

import json
from pathlib import Path

import pytest
from eight_devices import run_on_eight_devices

from t2x.plan.collectives import collectives
from t2x.plan.hlo import Program

MESH = {'data': 2, 'fsdp': 2, 'tensor': 2}
TEXT = """HloModule m, is_scheduled=true

ENTRY %main (a: f32[4,4]) -> f32[8,4] {{
  %a = f32[4,4]{{1,0}} parameter(0)
  ROOT %g = f32[8,4]{{1,0}} all-gather(%a), channel_id=1, {groups}, dimensions={{0}}, use_global_device_ids=true
}}
"""


@pytest.mark.parametrize(
  ('groups', 'axes'),
  [
    ('replica_groups={{0,1},{2,3},{4,5},{6,7}}', ('tensor',)),
    ('replica_groups={{0,4},{1,5},{2,6},{3,7}}', ('data',)),
    ('replica_groups=[4,2]<=[8]', ('tensor',)),
    ('replica_groups=[4,2]<=[2,2,2]T(0,2,1)', ('fsdp',)),
    ('replica_groups=[2,4]<=[4,2]T(1,0)', ('data', 'fsdp')),
    ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'b'}", ('fsdp',)),
    ("replica_groups=mesh['a'=8] {'a':(2)2}", ('fsdp',)),
    ("replica_groups=mesh['a'=4,'b'=2] {'a','b'}", ('data', 'fsdp', 'tensor')),
    ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", ('fsdp', 'tensor')),
    ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ('data',)),
    ('replica_groups={{0,3},{1,2},{4,7},{5,6}}', ('mixed',)),
  ],
)
def test_groups_of_devices_are_mesh_axes(groups, axes):
  (found,) = collectives(Program(TEXT.format(groups=groups)), MESH)
  assert (found.kind, found.axes, found.count) == ('all-gather', axes, 1)
  assert (found.bytes, found.narrow_bytes) == (8 * 4 * 4, 8 * 4 * 2)


def compiled_collectives(*arguments):
  """Returns the output of known_collectives.py, which compiles for eight fake devices."""
  done = run_on_eight_devices(Path(__file__).with_name('known_collectives.py'), *arguments)
  return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope='module')
def steps():
  return compiled_collectives('--steps')


def found_in(listed):
  return {(one['kind'], tuple(one['axes'])): (one['count'], one['bytes']) for one in listed}


@pytest.mark.slow
def test_hand_written_collectives_have_their_bytes():
  """Float32 shards of 4 x 16; the loop runs three times."""
  shard = 4 * 16 * 4
  assert found_in(compiled_collectives()['hand-written']) == {
    ('all-reduce', ('fsdp',)): (3, 3 * shard),
    ('all-gather', ('tensor',)): (1, 2 * shard),
    ('reduce-scatter', ('data', 'fsdp')): (1, shard),
    ('all-to-all', ('tensor',)): (1, shard),
    ('collective-permute', ('data',)): (1, shard),
  }


@pytest.mark.nightly
def test_data_parallelism_sums_the_gradients_once(steps):
  """A gradient has the bytes of its parameter, in float32. The tied table has two: of the lookup and of the head."""
  found = found_in(steps['ddp'])
  assert set(found) == {('all-reduce', ('data',))}
  assert found['all-reduce', ('data',)][1] == pytest.approx(
    steps['gradient_bytes'] + steps['table_bytes'], rel=0.01
  )


@pytest.mark.nightly
def test_full_sharding_gathers_twice_and_scatters_once_per_layer(steps):
  """Rows are long, so the compiler moves parameters, not activations, except for the lookup of tokens."""
  found = found_in(steps['fsdp'])
  gathered = sum(size for (kind, _), (_, size) in found.items() if kind == 'all-gather')
  scattered = sum(
    size for (kind, _), (_, size) in found.items() if kind in ('reduce-scatter', 'all-reduce')
  )
  assert gathered == pytest.approx(2 * steps['gradient_bytes'], rel=0.05)
  assert scattered == pytest.approx(steps['gradient_bytes'], rel=0.05)
