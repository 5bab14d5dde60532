"""A run that starts from another, through the command line."""

import json
import shutil

import pytest

SHORT = """
Trainer:
  num_steps = 4
  eval_every = 2
  checkpoint_every = 0
num_layers = 1
"""

# At a rate of zero what is evaluated is what was loaded.
STILL = (
  SHORT
  + """
Cosine:
  peak = 1e-30
Experiment.init_from = @InitFrom()
InitFrom.run = '{run}'
"""
)


@pytest.fixture(scope='module')
def ended(tmp_path_factory):
  """Where the run to start from is kept for all tests of this file."""
  return tmp_path_factory.mktemp('ended') / 'run'


@pytest.fixture
def first(ended, experiment, t2x):
  """A finished run, whose last checkpoint keeps a moving average."""
  if not ended.exists():
    config = experiment('image_classification', SHORT + 'Trainer.ema_decay = 0.5\n')
    code, _, err = t2x('train', config, '--out', ended)
    assert code == 0, err
  return ended


def evaluations(folder):
  lines = map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())
  return [line for line in lines if line['split'] == 'eval']


def test_the_first_evaluation_is_the_last_one_of_the_run_of_its_seed(
  first, experiment, t2x, tmp_path, caplog
):
  (tmp_path / 'first-3').symlink_to(first)
  extra = STILL.format(run=tmp_path / 'first-{seed}') + 'Trainer.seed = 3\n'
  config, folder = experiment('image_classification', extra), tmp_path / 'second'
  code, out, err = t2x('check', config)
  assert code == 0, err
  assert 'initialised from step 4' in out
  code, _, err = t2x('train', config, '--out', folder)
  assert code == 0, err
  expected, found = evaluations(first)[-1], evaluations(folder)[0]
  assert {'loss', 'accuracy'} <= set(expected)
  # The last evaluation of a run also has the test images.
  for name in expected.keys() & found.keys() - {'step', 'split', 'weights'}:
    assert found[name] == pytest.approx(expected[name], rel=1e-6), name
  table = (folder / 'init_from.txt').read_text()
  assert '0 resized, 0 new, 0 mismatched, 0 unused' in table.splitlines()[0]
  assert table.strip() in caplog.text


@pytest.mark.slow
def test_a_resumed_run_loads_its_own_checkpoint(first, experiment, t2x, tmp_path, caplog, metrics):
  elsewhere = shutil.copytree(first, tmp_path / 'first')
  extra = SHORT + f"Experiment.init_from = @InitFrom()\nInitFrom.run = '{elsewhere}'\n"
  config, folder = experiment('image_classification', extra), tmp_path / 'second'
  assert t2x('train', config, '--out', folder)[0] == 0
  expected = metrics(folder)
  shutil.rmtree(folder / 'checkpoints' / '4')
  shutil.rmtree(elsewhere)
  caplog.clear()
  code, _, err = t2x('train', config, '--out', folder)
  assert code == 0, err
  assert 'initialised from' not in caplog.text
  assert metrics(folder) == expected


@pytest.mark.slow
def test_a_head_for_fewer_classes_and_a_finer_grid(first, experiment, t2x, tmp_path):
  extra = f"""{SHORT}
Experiment.init_from = @InitFrom()
InitFrom:
  run = '{first}'
  resize = {{'head.*': @KeepNew(), 'positions.table': @InterpolateGrid()}}
  exclude = ['embedding..*']
InterpolateGrid.num_extra = 0
grid = 8
PatchEmbedding.patch_size = 1
num_classes = 12
"""
  config, folder = experiment('image_classification', extra), tmp_path / 'second'
  code, _, err = t2x('train', config, '--out', folder)
  assert code == 0, err
  table = (folder / 'init_from.txt').read_text()
  assert 'resized from (16, 32) (InterpolateGrid(num_extra=0, old=None, new=None))' in table
  assert 'mismatched (32, 10), kept new (KeepNew())' in table


def test_different_shapes_are_one_error(first, experiment, t2x, tmp_path):
  config = experiment('image_classification', STILL.format(run=first) + 'd_model = 16\n')
  code, _, err = t2x('train', config, '--out', tmp_path / 'second')
  assert code == 2
  assert 'head.out.kernel is (32, 10) in the run but (16, 10) in the new model' in err
  assert 'Traceback' not in err
