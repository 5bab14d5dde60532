"""Whatever runs a model on eight fake devices (a process of its own) splits its rows over them."""

import json

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
