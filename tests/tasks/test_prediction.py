"""Outputs of a model for examples, in batches of one shape."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from eight_devices import run_on_eight_devices
from evaluating import evaluated
from flax import nnx

from t2x.tasks.prediction import in_batches


@pytest.mark.parametrize('size', [None, len])
@pytest.mark.parametrize('count', [0, 1, 4, 7, 8])
def test_each_item_has_its_output_in_the_order_of_the_items(count, size):
  items = [chr(ord('a') + i) * (1 + i * 5 % 7) for i in range(count)]
  batches = []

  def function(batch):
    batches.append(batch)
    return [item.upper() for item in batch]

  watched = []

  def watch(numbers):
    watched.extend(numbers)
    return iter(watched)

  results = in_batches(items, function, 4, size=size, watched=watch)
  assert list(results) == [(item, item.upper()) for item in items]
  assert [len(batch) for batch in batches] == [4] * len(watched) == [4] * (-(-count // 4))
  if size and count == 8:
    assert max(map(len, batches[0])) <= min(map(len, batches[1]))


class Scale(nnx.Module):
  def __init__(self):
    self.factor = nnx.Param(jnp.float32(3.0))


class Rows:
  """A task whose transform draws a number for each row."""

  def transform(self, *, train):
    assert not train
    return lambda row, rng: {'x': np.float32([row['x'], 1]), 'drawn': np.float32(rng.random())}


def predicted(model, traced, batch_size=4):
  rows = [{'x': i, 'text': str(i)} for i in range(7)]
  run = evaluated(Rows(), model, rows, batch_size)

  def function(model, batch):
    traced.append(batch['x'].shape)
    return {'y': model.factor[...] * batch['x'], 'drawn': batch['drawn']}

  return list(run.predict(run.rows('validation'), function))


def test_each_row_has_its_output_without_padding_from_one_program():
  traced = []
  pairs = predicted(Scale(), traced)
  assert [row['text'] for row, _ in pairs] == list('0123456')
  for i, (_, output) in enumerate(pairs):
    np.testing.assert_array_equal(output['y'], [3 * i, 3])
  assert traced == [(4, 2)]
  # Each row has draws of its own, the same in every evaluation.
  draws = [float(output['drawn']) for _, output in pairs]
  assert len(set(draws)) == 7
  assert draws == [float(output['drawn']) for _, output in predicted(Scale(), [])]


def print_predictions():
  """Prints the outputs of a model on eight devices, and the number of devices that compute them."""
  import jax

  from t2x.parallel import Mesh

  mesh = Mesh(data=8).build()
  replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  model = jax.device_put(Scale(), replicated)
  pairs = predicted(model, [], 8)
  print(json.dumps([np.asarray(output['y']).tolist() for _, output in pairs]))


@pytest.mark.slow
def test_eight_devices_return_the_rows_of_one():
  code = 'from tests.tasks.test_prediction import print_predictions; print_predictions()'
  done = run_on_eight_devices(code)
  assert json.loads(done.stdout.splitlines()[-1]) == [[3.0 * i, 3.0] for i in range(7)]
