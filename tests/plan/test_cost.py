"""Times are those of the rates, computed by hand."""

import pytest

from t2x.plan import DEVICES
from t2x.plan.collectives import Collective
from t2x.plan.cost import collective_seconds, run_cost, step_time

H100 = DEVICES['h100']
MESH = {'data': 2, 'fsdp': 4, 'tensor': 4}


def collective(kind, *axes, members, size=10**9):
  return Collective(kind, axes, 1, 2 * size, members, size)


@pytest.mark.parametrize(
  ('one', 'seconds'),
  [
    # Four neighbours: three quarters of the bytes over NVLink, 450 GB/s.
    (collective('all-gather', 'tensor', members=4), 0.75 / 450),
    (collective('all-reduce', 'tensor', members=4), 2 * 0.75 / 450),
    # Two of the four are in a machine of eight: half of the bytes leave it, over two adapters of 50 GB/s.
    (collective('reduce-scatter', 'fsdp', members=4), 0.5 / 100),
    # One per machine.
    (collective('all-reduce', 'data', members=2), 2 * 0.5 / 50),
    # All devices: three quarters leave the machine over eight adapters; 7/8 over NVLink take longer.
    (collective('all-gather', 'data', 'fsdp', 'tensor', members=32), 0.875 / 450),
    (collective('collective-permute', 'data', members=2), 1 / 50),
  ],
)
def test_collectives_take_the_longer_of_fast_and_slow_links(one, seconds):
  assert collective_seconds(one, H100, MESH) == pytest.approx(seconds / 0.8)


def test_only_collectives_of_parameters_and_gradients_overlap_with_compute():
  """Those over the axes that split the batch, except the vectors that move to experts."""
  ones = [collective('all-gather', 'fsdp', members=4, size=10**12)]
  ones += [collective('all-reduce', 'tensor', members=4, size=10**11)]
  ones += [collective('all-to-all', 'fsdp', members=4, size=10**11)]
  time = step_time(3 * int(989e12), 0.5, ones, H100, MESH)
  assert time.compute == pytest.approx(6)
  assert time.overlapped == pytest.approx(1000 * 0.5 / 100 / 0.8)
  exposed = 2 * 100 * 0.75 / 450 / 0.8 + 100 * 0.5 / 100 / 0.8
  assert time.exposed == pytest.approx(exposed)
  assert time.estimate == pytest.approx(time.overlapped + time.exposed)
  assert time.slowest == pytest.approx(6 + time.overlapped + time.exposed)
  experts = step_time(0, 0.5, [collective('all-reduce', 'data', 'expert', members=8)], H100, MESH)
  assert experts.exposed == 0


def test_the_cost_of_a_run_is_its_device_hours():
  cost = run_cost(2.0, 989e12 * 8, 1_000_000, 1.8e9, H100, 8, price=2.0)
  assert cost.mfu == pytest.approx(0.5)
  assert cost.days == pytest.approx(1 / 24)
  assert cost.price == pytest.approx(16)
