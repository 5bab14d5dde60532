"""The config of ETTh1 with a hand-written file in its layout."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from applying import moved
from flax import nnx

from t2x.experiments import read_config

FILE = Path(__file__).parents[3] / 'configs' / 'runs' / 'etth1_patchtst_full.gin'
COLUMNS = 'HUFL', 'HULL', 'MUFL', 'MULL', 'LUFL', 'LULL', 'OT'


def test_etth1_is_read_as_twelve_four_and_four_months_of_seven_channels(tmp_path):
  hours = np.datetime64('2016-07-01T00:00:00') + np.arange(14_500) * np.timedelta64(1, 'h')
  waves = np.sin(np.arange(14_500)[:, None] / (3 + np.arange(7))[None])
  lines = [
    ','.join([str(hour).replace('T', ' '), *(f'{value:.4f}' for value in row)])
    for hour, row in zip(hours, waves, strict=True)
  ]
  path = tmp_path / 'ETTh1.csv'
  path.write_text('\n'.join([','.join(['date', *COLUMNS]), *lines]))
  experiment = read_config([FILE], [f"SeriesFile.path='{path}'"]).build()
  task, trainer = experiment.task, experiment.trainer
  rows = {split: task.rows(split) for split in ('train', 'validation', 'test')}
  # The windows of the authors' data loader.
  assert {name: len(one) for name, one in rows.items()} == {
    'train': 8640 - 336 - 95,
    'validation': 2880 - 95,
    'test': 2880 - 95,
  }
  np.testing.assert_allclose(rows['test'][0]['future'][0], waves[8640 + 2880], atol=1e-4)
  assert trainer.num_steps == 100 * len(rows['train']) // trainer.batch_size
  model = moved(experiment.complete_model()(rngs=nnx.Rngs(0)))
  task.check_model(model)
  assert model.network.output_dim == 41 * 16
  batch = task.batches(rows['train'], batch_size=2, seed=0)[0]
  sums = task.sums(model, {name: jnp.asarray(array) for name, array in batch.items()}, None)
  assert sums.metrics['loss'][1] == 2 * 96 * 7 and jnp.isfinite(sums.metrics['loss'][0])
