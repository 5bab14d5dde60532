"""The files under launch/ are valid, and give t2x options that it has."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from t2x.cli import parser

LAUNCH = Path(__file__).parents[2] / 'launch'
SHELL = sorted([*LAUNCH.rglob('*.sh'), *LAUNCH.rglob('*.sbatch')])


@pytest.mark.skipif(shutil.which('bash') is None, reason='needs bash')
@pytest.mark.parametrize('path', SHELL, ids=lambda path: path.name)
def test_shell_files_parse(path):
  subprocess.run(['bash', '-n', str(path)], check=True)


@pytest.mark.parametrize('path', sorted(LAUNCH.rglob('*.*')), ids=lambda path: path.name)
def test_each_file_says_at_its_head_how_to_use_it(path):
  head = path.read_text().splitlines()[:8]
  assert any(word in line for line in head for word in ('launch/', 'kubectl')), head


def test_job_set_restarts_after_exit_code_75():
  job_set = yaml.safe_load((LAUNCH / 'kubernetes/jobset.yaml').read_text())
  assert job_set['kind'] == 'JobSet'
  job = job_set['spec']['replicatedJobs'][0]['template']['spec']
  assert job['completionMode'] == 'Indexed'
  assert job['podFailurePolicy']['rules'][0]['onExitCodes']['values'] == [75]
  rule = job_set['spec']['failurePolicy']['rules'][0]
  assert rule['action'] == 'RestartJobSetAndIgnoreMaxRestarts'
  assert rule['onJobFailureMessagePatterns'] == ['matching FailJob rule at index 0$']
  (container,) = job['template']['spec']['containers']
  nodes = container['env'][0]['value']
  assert job['parallelism'] == job['completions'] == int(nodes)
  told = container['command'][-1].replace('"$NODES"', nodes).replace('"$JOB_COMPLETION_INDEX"', '1')
  args = parser().parse_args(told.split()[2:])
  assert (args.command, args.num_processes, args.process_id) == ('train', 2, 1)
  name, domain = args.coordinator.split(':')[0].split('.')
  assert (name, domain) == (f'{domain}-workers-0-0', job_set['metadata']['name'])


LOCAL = [sys.executable, str(LAUNCH / 'local/run.py'), '-n', '3', '--', sys.executable, '-c']


@pytest.mark.parametrize('codes, expected', [((0, 0, 0), 0), ((75, 75, 75), 75), ((0, 3, 0), 3)])
def test_local_launcher_gives_the_exit_code(codes, expected):
  code = f'import sys; print("here"); sys.exit({codes}[int(sys.argv[-1])])'
  done = subprocess.run([*LOCAL, code], capture_output=True, text=True, timeout=60, check=False)
  assert done.returncode == expected
  assert sorted(done.stdout.splitlines()) == ['[0] here', '[1] here', '[2] here']


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP])
def test_local_launcher_passes_signals_on(number):
  code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print('ready', flush=True)
time.sleep(60)
"""
  # These tests may run under nohup.
  reset = (
    'import os, signal, sys; signal.signal(1, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])'
  )
  command = [sys.executable, '-c', reset, *LOCAL, code]
  process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
  assert process.stdout is not None
  for _ in range(3):
    assert process.stdout.readline().endswith('ready\n')
  process.send_signal(number)
  assert process.wait(timeout=30) == 75
  process.stdout.close()
