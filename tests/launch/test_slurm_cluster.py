"""A real Slurm cluster on this machine: a run that hits its time limit and resumes, and a sweep as job arrays."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t2x.sweeps.records import read_outcome, read_plan
from t2x.sweeps.runners import distinct

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TESTBED = ROOT / 'launch/slurm/testbed/testbed.sh'
DAEMONS = ('munged', 'slurmctld', 'slurmd')

CONFIG = f"""
include '{ROOT}/configs/runs/vit_digits.gin'
d_model = 16
num_layers = 1
MLP.hidden_dim = 32
MultiHeadAttention.num_heads = 2
Trainer:
  num_steps = {{steps}}
  batch_size = 32
  eval_every = {{every}}
  log_every = 1
  checkpoint_every = 0
Cosine.warmup_steps = 2
"""
# Until the job has been requeued, steps wait, so that it reaches its time limit on any machine.
WAIT = """
import os
import time


class Wait:
  def __init__(self, folder):
    pass

  def write(self, step, split, metrics):
    if 'SLURM_RESTART_COUNT' not in os.environ:
      time.sleep(1)

  def close(self):
    pass
"""
SWEEP = """
Sweep:
  base = 'tiny.gin'
  baseline = 'gelu'
  variants = {'gelu': {}, 'relu': {'MLP.activation': @relu}}
  seeds = 2
"""


def missing():
  path = os.environ['PATH'] + ':/usr/sbin:/sbin'
  return [name for name in DAEMONS if shutil.which(name, path=path) is None]


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
  """Environment variables of a cluster with two nodes, which ends with the tests of this file."""
  if missing() and os.environ.get('CI') and os.geteuid() == 0 and shutil.which('apt-get'):
    subprocess.run([TESTBED, 'install'], capture_output=True, check=False)
  if missing():
    pytest.skip(f'{", ".join(missing())} cannot be installed here: run {TESTBED} install as root')
  folder = tmp_path_factory.mktemp('slurm')
  variables = {
    'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',
    'SLURM_CONF': str(folder / 'slurm.conf'),
    'T2X_SLURM': str(folder),
  }
  environment = os.environ | variables
  done = subprocess.run(
    [TESTBED, 'start'], env=environment, capture_output=True, text=True, check=False
  )
  try:
    assert done.returncode == 0, done.stdout + done.stderr
    yield environment
  finally:
    subprocess.run([TESTBED, 'stop'], env=environment, check=True)


@pytest.fixture
def t2x(cluster, tmp_path):
  """`t2x(*words)` runs t2x in `tmp_path` and returns its output."""

  def run(*words):
    done = subprocess.run(
      [sys.executable, '-m', *words],
      cwd=tmp_path,
      env=cluster,
      capture_output=True,
      text=True,
      timeout=300,
      check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

  return run


def wait_for_jobs(environment, seconds):
  """Waits until the queue has been empty for three seconds."""
  end, idle = time.monotonic() + seconds, 0
  while idle < 6:
    assert time.monotonic() < end, 'jobs are still in the queue'
    queue = subprocess.run(
      ['squeue', '--noheader'], env=environment, capture_output=True, text=True, check=True
    )
    idle = 0 if queue.stdout else idle + 1
    time.sleep(0.5)


def submitted(output):
  """The number of the job that sbatch printed."""
  (job,) = re.findall(r'Submitted batch job (\d+)', output)
  return job


def job_state(environment, job):
  command = ['scontrol', 'show', 'job', job]
  return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_run_resumes_after_its_time_limit_and_equals_an_undisturbed_run(
  cluster, t2x, metrics, tmp_path
):
  (tmp_path / 'run.gin').write_text(CONFIG.format(steps=120, every=40))
  (tmp_path / 'wait.py').write_text(WAIT)
  (tmp_path / 'slow.gin').write_text("import wait\ninclude 'run.gin'\nTrainer.writers = [@Wait]\n")
  train = ('t2x', 'train', 'run.gin', '--out', 'undisturbed')
  t2x('t2x.launch.processes', '-n', '2', '--', sys.executable, '-m', *train)
  # Slurm may send the signal half a minute early, and ends a job up to half a minute late.
  options = ('--nodes', '2', '--cpu-devices', '1', '--time', '2', '--warn', '30')
  files = ('--out', 'run.sbatch', '--log', 'log.txt', '--submit')
  job = submitted(t2x('t2x', 'launch', 'slurm', 'slow.gin', *options, '--run', 'requeued', *files))
  wait_for_jobs(cluster, 420)
  log = (tmp_path / 'log.txt').read_text()
  print(log)
  state = job_state(cluster, job)
  assert 'JobState=COMPLETED' in state, log
  restarts = int(re.search(r'Restarts=(\d+)', state)[1])
  assert restarts >= 1
  assert log.count('interrupted; requeueing the job') == restarts
  assert 2 <= log.count('all 2 processes joined') <= restarts + 1
  assert 'saved at step' in log
  assert metrics(tmp_path / 'requeued') == metrics(tmp_path / 'undisturbed')


def test_scancel_ends_a_job_although_its_processes_exit_with_code_75(cluster, t2x, tmp_path):
  (tmp_path / 'run.gin').write_text(CONFIG.format(steps=12, every=4))
  (tmp_path / 'bin').mkdir()
  stub = tmp_path / 'bin' / 't2x'
  stub.write_text("#!/bin/bash\ntrap 'exit 75' TERM\necho started\nwhile :; do sleep 0.1; done\n")
  stub.chmod(0o755)
  options = ('--nodes', '2', '--cpu-devices', '1', '--setup', f'PATH={stub.parent}:$PATH')
  files = ('--out', 'run.sbatch', '--log', 'log.txt', '--submit')
  job = submitted(t2x('t2x', 'launch', 'slurm', 'run.gin', *options, *files))
  log = tmp_path / 'log.txt'
  end = time.monotonic() + 60
  while not log.exists() or log.read_text().count('started') < 2:
    assert time.monotonic() < end
    time.sleep(0.2)
  subprocess.run(['scancel', job], env=cluster, check=True)
  wait_for_jobs(cluster, 60)
  assert 'Exited with exit code 75' in log.read_text()
  assert 'JobState=CANCELLED' in job_state(cluster, job)


def test_a_sweep_as_job_arrays_equals_a_local_sweep(cluster, t2x, tmp_path):
  (tmp_path / 'tiny.gin').write_text(CONFIG.format(steps=12, every=4))
  (tmp_path / 'study.gin').write_text(SWEEP)
  t2x('t2x', 'sweep', 'study.gin', '--out', 'local', '--processes', '1')
  files = ('--out', 'sweep.sbatch', '--log', 'log-%j.txt', '--submit')
  options = ('--cpu-devices', '1', '--time', '5', '--run', 'arrays')
  t2x('t2x', 'launch', 'slurm', 'study.gin', *options, *files)
  wait_for_jobs(cluster, 240)
  logs = [path.read_text() for path in sorted(tmp_path.glob('log-*.txt'))]
  print(*logs)
  # Two plans and the tasks of two programs.
  assert len(logs) == 4 and 'groups to run: 0,1' in logs[0]
  assert sum('all trials have ended' in log for log in logs) == 1
  outcomes = [
    {
      trial.folder: read_outcome(tmp_path / out / 'trials' / trial.folder).metrics
      for trial in distinct(read_plan(tmp_path / out / 'study').trials)
    }
    for out in ('local', 'arrays')
  ]
  assert outcomes[0] == outcomes[1] and len(outcomes[0]) == 4
