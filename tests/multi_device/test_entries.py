"""Whatever runs a model on eight fake devices (a process of its own) splits its rows over them."""

import functools
import json
from pathlib import Path

import pytest
from eight_devices import run_on_eight_devices

pytestmark = pytest.mark.slow

ROWS = """
import json
import jax, numpy as np
from eight_devices import split
from flax import nnx
from t2x.parallel import spread_over
from t2x.layers import MLP
from t2x.parallel import Mesh

found = {}
for sizes in ({'expert': 8}, {'data': 2, 'fsdp': 2, 'expert': 2}, {'data': 2, 'tensor': 4}):
  model, *_ = split(MLP(8, hidden_dim=8, rngs=nnx.Rngs(0)), np.zeros((8, 1)), Mesh(**({'data': 1} | sizes)))
  spread, gather = spread_over(model, 8)
  rows = spread(np.arange(8))
  assert np.asarray(gather(rows)).tolist() == list(range(8))
  found[str(sizes)] = len(rows.addressable_shards[0].data)
print(json.dumps(found))
"""


def test_rows_of_generation_are_split_over_all_axes_of_a_batch():
  found = json.loads(run_on_eight_devices(ROWS).stdout.splitlines()[-1])
  assert list(found.values()) == [1, 1, 4]


@functools.cache
def results(command):
  """What the entries did, by name and mesh or platform."""
  done = run_on_eight_devices(Path(__file__).with_name('entries.py'), command, seconds=1800)
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_every_entry_on_eight_devices_equals_one_device():
  """Experts without a capacity and a window, on three meshes, for numbers of rows and lengths that no device count
  divides; the number of constraints shows that the layout was used."""
  found = results('run')
  assert len(found) == 33
  for name, (difference, constraints) in found.items():
    assert difference < 1e-5, name
    assert constraints > 10, name


@pytest.mark.parametrize('platform', ['tpu', 'cuda'])
def test_every_entry_lowers_for_accelerators_with_their_kernels(platform):
  """Without the layout, Mosaic kernels are refused, because the compiler cannot split them."""
  kernel = {'tpu': 'splash_mha_fwd', 'cuda': 'dot_product_attention_fwd_wrapper'}[platform]
  found = {name: kernels for name, kernels in results('lower').items() if platform in name}
  assert len(found) == 5
  # Generation attends to the slots of a cache, with dense attention.
  assert found.pop(f'generation, {platform}') == []
  assert all(kernels == [kernel] for kernels in found.values()), found
