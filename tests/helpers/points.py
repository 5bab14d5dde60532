"""A line through points, whose training steps take no time: runs for tests of the training loop."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.data import Batches, TextFiles
from t2x.layers import param
from t2x.parallel import Mesh
from t2x.tasks import Task, TaskOutput
from t2x.train import SGD, Constant, Experiment, Trainer

BATCH = 4


class Line(nnx.Module):
  """A slope and an offset."""

  def __init__(self, rngs):
    self.slope = param(nnx.initializers.ones, (3,), ('embed',), rngs, kind='vector')
    self.offset = param(nnx.initializers.zeros, (1,), ('length',), rngs, kind='vector')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Points(Task):
  """Points near a line. `bad`: step -> the y that all points of its batch have."""

  bad: Any = ()
  num_steps: int = 30

  unit = 'examples'

  def rows(self, split):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH * (self.num_steps + 8), 3)).astype(np.float32)
    rows = [{'x': row, 'y': np.float32(row.sum() + 1 + 0.1 * rng.normal())} for row in x]
    batches = Batches(rows, batch_size=BATCH, seed=0)
    for step, y in self.bad if split == 'train' else ():
      for row in batches.indices(step - 1)[1]:
        rows[row]['y'] = np.float32(y)
    return rows

  def spec(self, batch_size):
    shapes = {'x': (batch_size, 3), 'y': (batch_size,)}
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

  def check_model(self, model):
    pass

  def count(self, batch):
    return len(batch['y'])

  def target_weights(self, batch):
    return jnp.ones(len(batch['y']))

  def sums(self, model, batch, key):
    weights = self.target_weights(batch)
    y = jnp.where(weights > 0, batch['y'], 0.0)
    error = batch['x'] @ model.slope[...] + model.offset[...] - y
    total = jnp.sum(weights * jnp.square(error))
    return TaskOutput({'loss': (total, weights.sum())})


def points(bad=(), num_steps=30, **settings):
  """An experiment with points."""
  source = TextFiles(train='none')
  task = Points(
    source=source, eval_split='train', bad=tuple(dict(bad).items()), num_steps=num_steps
  )
  defaults: dict[str, Any] = {
    'log_every': 3,
    'eval_every': 0,
    'checkpoint_every': 5,
    'clip_norm': None,
    'schedule': Constant(peak=0.01),
  }
  trainer = Trainer(
    num_steps=num_steps,
    batch_size=BATCH,
    optimizer=SGD(),
    **(defaults | settings),
  )
  return Experiment(model=Line, task=task, trainer=trainer, mesh=Mesh())
