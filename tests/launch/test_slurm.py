"""Rendered batch scripts, run by bash with stubs of Slurm's commands."""

import os
import signal
import subprocess
import time

import pytest

from t2x.cli import parser

QUICK = 'configs/runs/quickstart.gin'
SWEEP = 'experiments/feed_forward/sweep.gin'
TABLE = """
{}group  program  ended  variants
    0  a1b2       {}/2  gelu
    1  c3d4       1/1  relu, swish
groups to run: {}"""


@pytest.fixture
def script(launch, tmp_path):
  """`script(*options)` writes a batch script and returns its path."""

  def write(*options):
    path = tmp_path / 'job.sbatch'
    code, output = launch('slurm', *options, '--out', path)
    assert code == 0, output.err
    return path

  return write


def run(path, *arguments, **variables):
  return subprocess.run(
    ['bash', path, *arguments],
    env=os.environ | {'SLURM_JOB_ID': '7'} | variables,
    capture_output=True,
    text=True,
    timeout=30,
    check=False,
  )


@pytest.mark.parametrize(
  'code, restarts, state, requeued',
  [
    (0, '', 'JobState=RUNNING', False),
    (3, '', 'JobState=RUNNING', False),
    (75, '', 'JobState=RUNNING Reason=None', True),
    # SIGTERM has ended a process before it handles signals, or after the run.
    (143, '', 'JobState=RUNNING Reason=None', True),
    (75, '', 'JobState=COMPLETING Reason=TimeLimit', True),
    # After scancel.
    (75, '', 'JobState=COMPLETING Reason=None', False),
    (75, '100', 'JobState=RUNNING', False),
  ],
)
def test_only_an_interrupted_job_is_requeued(code, restarts, state, requeued, script, stubs):
  stubs(srun=f'exit {code}', scontrol=f'echo "{state}"')
  done = run(script(QUICK, '--cpu-devices', '1'), SLURM_RESTART_COUNT=restarts)
  assert done.returncode == code
  assert ('scontrol requeue 7' in stubs.calls()) == requeued


def test_only_the_interrupted_task_of_an_array_is_requeued(script, stubs):
  stubs(t2x='exit 75', scontrol='echo JobState=RUNNING')
  path = script(SWEEP, '--cpu-devices', '1')
  assert run(path, SLURM_ARRAY_JOB_ID='7', SLURM_ARRAY_TASK_ID='2').returncode == 75
  assert stubs.calls()[1:] == ['scontrol show job 7_2', 'scontrol requeue 7_2']


def test_sigterm_is_forwarded_to_the_processes_and_their_exit_code_awaited(script, stubs, tmp_path):
  pid = tmp_path / 'pid'
  stubs(
    srun=f'trap "sleep 0.3; exit 75" TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; while :; do sleep 0.1; done',
    scancel=f'kill -TERM $(cat {pid})',
    scontrol='echo JobState=RUNNING',
  )
  process = subprocess.Popen(
    ['bash', script(QUICK, '--cpu-devices', '1')], env=os.environ | {'SLURM_JOB_ID': '7'}
  )
  while not pid.exists():
    time.sleep(0.05)
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=30) == 75
  assert stubs.calls()[1:] == [
    'scancel --signal=TERM 7',
    'scontrol show job 7',
    'scontrol requeue 7',
  ]


def test_the_command_trains_with_all_files_bindings_and_variables(script, stubs):
  stubs(srun='echo "$T2X_CACHE $JAX_NUM_CPU_DEVICES"')
  path = script(
    QUICK,
    'configs/meshes/ddp.gin',
    *('--cpu-devices', '4', '--run', 'runs/my run', '--env', 'T2X_CACHE=/a b', '--setup', 'cd .'),
    "--gin.Samples.prompts=['a b']",
  )
  done = run(path)
  assert done.stdout == '/a b 4\n', done.stderr
  (call,) = stubs.calls()
  words = call.removeprefix('srun --label --kill-on-bad-exit=0 t2x ')
  assert words == (
    f"train {QUICK} configs/meshes/ddp.gin --out runs/my run --gin.Samples.prompts=['a b']"
  )


def test_tasks_have_the_cores_of_the_job_unless_it_sets_their_number(script, stubs):
  """Without --cpus-per-task, srun must not give one core to a task: sites may give cores per GPU."""
  stubs(srun='')
  path = script(QUICK, '--cpu-devices', '1')
  run(path)
  run(path, SLURM_CPUS_PER_TASK='8')
  options = [call.partition(' t2x ')[0].split()[3:] for call in stubs.calls()]
  assert options == [[], ['--cpus-per-task=8']]


def test_one_task_per_gpu(launch):
  code, output = launch('slurm', QUICK, '--nodes', '2', '--gpus-per-node', '4', '--task-per', 'gpu')
  lines = output.out.splitlines()
  assert code == 0
  assert {'#SBATCH --nodes=2', '#SBATCH --ntasks-per-node=4', '#SBATCH --gpus-per-node=4'} <= {
    *lines
  }
  assert not any('JAX_PLATFORMS' in line for line in lines)


def test_a_sweep_submits_an_array_of_the_groups_that_remain_and_the_next_stage(script, stubs):
  stubs(t2x=f"cat <<'END'{TABLE.format('', 1, '0,2')}\nEND", sbatch='echo 40')
  path = script(SWEEP, '--cpu-devices', '1', '--parallel', '3', '--confirm', '--gin.a=1')
  done = run(path)
  assert done.returncode == 0, done.stderr
  assert stubs.calls() == [
    f't2x sweep {SWEEP} --out sweeps --confirm --groups --gin.a=1',
    f'sbatch --parsable --array=0,2%3 {path}',
    f'sbatch --dependency=afterany:40 {path} :2',
  ]
  # The task of a group; bindings are part of the plan.
  run(path, SLURM_ARRAY_JOB_ID='40', SLURM_ARRAY_TASK_ID='2')
  group = f'sweep {SWEEP} --out sweeps --confirm --group 2'
  assert stubs.calls()[-1] == f't2x {group}'
  assert parser().parse_args(group.split()).group == 2


def test_the_next_stage_depends_on_an_array_of_another_cluster(script, stubs):
  stubs(t2x=f"cat <<'END'{TABLE.format('', 1, '0,2')}\nEND", sbatch="echo '40;alpha'")
  path = script(SWEEP, '--cpu-devices', '1')
  assert run(path).returncode == 0
  assert stubs.calls()[-1] == f'sbatch --clusters=alpha --dependency=afterany:40 {path} :2'


def test_the_tasks_of_an_array_get_the_stage_of_the_sweep(script, stubs):
  line = 'groups of study-tune: t2x sweep study.gin --stage tune --group I\n'
  stubs(t2x=f"cat <<'END'{TABLE.format(line, 0, '0')}\nEND", sbatch='echo 40')
  path = script(SWEEP, '--cpu-devices', '1')
  # The same number of trials has ended in another stage.
  assert run(path, ':1').returncode == 0
  assert stubs.calls()[1:] == [
    f'sbatch --parsable --array=0 {path} --stage tune',
    f'sbatch --dependency=afterany:40 {path} tune:1',
  ]
  run(path, '--stage', 'tune', SLURM_ARRAY_JOB_ID='40', SLURM_ARRAY_TASK_ID='0')
  assert stubs.calls()[-1] == f't2x sweep {SWEEP} --out sweeps --stage tune --group 0'


@pytest.mark.parametrize(
  'groups, arguments, code, message',
  [('none', [':2'], 0, 'all trials have ended'), ('0', [':2'], 1, 'no trial has ended')],
)
def test_a_sweep_ends_when_no_group_remains_or_none_progresses(
  groups, arguments, code, message, script, stubs
):
  stubs(t2x=f"cat <<'END'{TABLE.format('', 1, groups)}\nEND", sbatch='exit 9')
  done = run(script(SWEEP, '--gpus-per-node', '1'), *arguments)
  assert done.returncode == code
  assert message in done.stdout + done.stderr
  assert len(stubs.calls()) == 1


def test_a_sweep_that_cannot_be_planned_ends_with_its_exit_code(script, stubs):
  stubs(t2x='exit 2', sbatch='exit 9')
  assert run(script(SWEEP, '--gpus-per-node', '2')).returncode == 2
  assert len(stubs.calls()) == 1


def test_submit_calls_sbatch_with_the_written_file(launch, stubs, tmp_path, monkeypatch):
  stubs(sbatch='')
  monkeypatch.setattr('os.execvp', lambda name, words: print('exec', name, *words))
  path = tmp_path / 'job.sbatch'
  code, output = launch('slurm', QUICK, '--cpu-devices', '1', '--out', path, '--submit')
  assert (code, output.out.splitlines()[-1]) == (0, f'exec sbatch sbatch {path}')
  assert path.read_text().startswith('#!/bin/bash\n')
