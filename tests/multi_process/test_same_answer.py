"""Two processes train, evaluate and generate as one does."""

import json

import pytest

pytestmark = pytest.mark.nightly

MESHES = {
  'a model over processes': (1, 'Experiment.mesh = @Mesh()\nMesh.data = 1\nMesh.tensor = 2\n'),
  'two devices each': (2, ''),
}


def close(a, b):
  return a == b or abs(a - b) <= 1e-5 * max(abs(a), abs(b))


def assert_same_metrics(ours, theirs):
  assert [(one['step'], one['split']) for one in ours] == [(o['step'], o['split']) for o in theirs]
  for a, b in zip(ours, theirs, strict=True):
    assert a.keys() == b.keys()
    assert all(a[name] == b[name] or close(a[name], b[name]) for name in a), (a, b)


def answer(done):
  """The JSON object that a command printed."""
  (line,) = [line for line in done.stdout.splitlines() if line.endswith('}')]
  return json.loads(line.removeprefix('[0] '))


@pytest.fixture(scope='module')
def one(t2x, config, place):
  """The folder of the one-process run of an experiment; made once."""

  def run(name):
    folder = place / f'{name}-one'
    if not folder.exists():
      done = t2x('train', config(name), '--out', folder)
      assert done.returncode == 0, done.stderr
    return folder

  return run


@pytest.mark.slow
@pytest.mark.parametrize('name', ['causal_lm', 'translation'])
@pytest.mark.nightly
def test_training_evaluation_and_generation_equal_one_process(
  name, one, t2x, config, metrics, tmp_path
):
  alone, two = one(name), tmp_path / 'two'
  done = t2x('train', config(name), '--out', two, processes=2)
  assert done.returncode == 0, done.stdout
  assert_same_metrics(metrics(alone), metrics(two))
  assert (alone / 'samples.jsonl').read_text() == (two / 'samples.jsonl').read_text()
  assert sorted(path.name for path in alone.iterdir()) == sorted(
    path.name for path in two.iterdir()
  )
  assert len(list((two / 'tensorboard').iterdir())) == 1
  assert not [line for line in done.stdout.splitlines() if line.startswith('[1]')], done.stdout

  # A checkpoint of one process is read by two, the last batch is not full, and three prompts do
  # not divide over two processes.
  args = ('eval', alone, '--json', '--limit', '5')
  ours, theirs = (answer(t2x(*args, processes=processes)) for processes in (1, 2))
  assert_same_metrics([ours], [theirs])
  prompts = [part for i in range(3) for part in ('--prompt', f'the {"cat " * i}')]
  args = ('generate', alone, *prompts, '--max-new-tokens', '5')
  written = []
  for processes in (1, 2):
    file = tmp_path / f'{processes}.jsonl'
    assert t2x(*args, '--output', file, processes=processes).returncode == 0
    written.append([json.loads(line) for line in file.read_text().splitlines()])
  assert len(written[0]) == 3
  assert [o['tokens'] for o in written[0]] == [o['tokens'] for o in written[1]]


@pytest.mark.slow
@pytest.mark.parametrize('mesh', MESHES)
def test_meshes_over_processes_equal_one_process(mesh, one, t2x, config, metrics, tmp_path):
  devices, extra = MESHES[mesh]
  file = config('causal_lm', extra)
  done = t2x('train', file, '--out', tmp_path / 'two', processes=2, devices=devices)
  assert done.returncode == 0, done.stdout
  assert_same_metrics(metrics(one('causal_lm')), metrics(tmp_path / 'two'))
