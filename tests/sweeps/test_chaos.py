"""A sweep on two hosts that are killed, with a trial that is always killed, ends as one left in peace."""

import contextlib
import csv
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from t2x.sweeps.leases import _read, deaths
from t2x.sweeps.records import read_plan
from t2x.sweeps.report import write_report
from t2x.sweeps.runners import distinct
from tests.sweeps.conftest import VARIANTS

SEED = 17
# Read by every process at its start. File locks fail, as on a file system without them. The
# trial of $KILLED is killed when its training begins: a stand-in for the system when memory is exhausted.
SITE = """
import fcntl, os, signal
def flock(file, *_):
  if os.path.dirname(str(getattr(file, 'name', ''))).endswith(os.environ['KILLED']):
    os.kill(os.getpid(), signal.SIGKILL)
  raise OSError(37, 'No locks available')
fcntl.flock = flock
"""
LONGER = ('--gin.Trainer.num_steps=60', '--gin.Trainer.checkpoint_every=20', '--gin.Sweep.seeds=3')


class Hosts:
  """Two runs of the command, each with workers of its own."""

  def __init__(self, line, environment, logs):
    self.line, self.environment, self.logs = line, environment, logs
    self.processes = [self.start(i) for i in range(2)]

  def start(self, index):
    with (self.logs / f'host-{index}.log').open('ab') as log:
      return subprocess.Popen(
        self.line, env=self.environment, stdout=log, stderr=log, start_new_session=True
      )

  def kill(self, index):
    """The host is gone with all its processes, and comes back."""
    os.killpg(self.processes[index].pid, signal.SIGKILL)
    self.processes[index].wait()
    self.processes[index] = self.start(index)

  def running(self, index, runs):
    """The trials that the host is running."""
    found = []
    for run in runs:
      record = _read(run) if run.exists() else None
      with contextlib.suppress(ProcessLookupError):
        if record and not record.end and os.getpgid(record.pid) == self.processes[index].pid:
          found.append(run)
    return found

  def may_be_killed(self, index, runs):
    """Whether the host runs trials, and none was killed before without a checkpoint since.

    The attempt that runs counts as one; a second kill at the same checkpoint would be the end of a trial.
    """
    return [len(deaths(run)) <= 1 for run in self.running(index, runs)] in ([True], [True, True])

  def kill_all(self):
    for process in self.processes:
      if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


class Watch(threading.Thread):
  """Looks which processes train which trials: those that have its .lock open."""

  def __init__(self, trials):
    super().__init__(daemon=True)
    self.trials, self.stop = trials, threading.Event()
    self.together, self.most, self.looks = [], 0, 0

  def run(self):
    while not self.stop.wait(0.01):
      trained = {}
      for link in Path('/proc').glob('[0-9]*/fd/*'):
        if (target := target_of(link)).startswith(str(self.trials)) and target.endswith('/.lock'):
          trained.setdefault(target, {})[link.parts[2]] = link
      self.looks += 1
      self.most = max(self.most, len(trained))
      for target, links in trained.items():
        if len(links) > 1 and len(pids := holders(target, links)) > 1:
          self.together.append((target, pids))


def target_of(link):
  """The file of a descriptor; '' if it was closed."""
  try:
    return os.readlink(link)
  except OSError:
    return ''


def holders(target, links):
  """The processes that had the file open at one time: a look at all processes is not one time, and during it a trial
  may pass from a process that ends to another. A child that has not called exec yet shares its parent's descriptors."""
  pids = {pid for pid, link in links.items() if target_of(link) == target}
  return {pid for pid in pids if parent_of(pid) not in pids}


def parent_of(pid):
  """The parent of a process; '' if it ended."""
  try:
    return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1]
  except OSError:
    return ''


@pytest.mark.slow
def test_two_processes_are_seen_and_a_parent_with_its_child_is_one(tmp_path):
  path = tmp_path / '.lock'
  path.touch()
  with path.open() as file:
    pair = [subprocess.Popen(['sleep', '60'], stdin=file) for _ in range(2)]
  parent = subprocess.Popen(
    ['sh', '-c', f'exec 3< {path}; echo; sleep 60; :'], stdout=subprocess.PIPE
  )
  parent.stdout.readline()
  end = time.monotonic() + 20
  while not (child := Path(f'/proc/{parent.pid}/task/{parent.pid}/children').read_text().strip()):
    assert time.monotonic() < end
  try:
    links = {str(one.pid): Path(f'/proc/{one.pid}/fd/0') for one in pair}
    assert holders(str(path), links) == set(links)
    family = {pid: Path(f'/proc/{pid}/fd/3') for pid in (str(parent.pid), child)}
    assert all(target_of(link) == str(path) for link in family.values())
    assert holders(str(path), family) == {str(parent.pid)}
    pair[0].kill()
    pair[0].wait()
    assert holders(str(path), links) == {str(pair[1].pid)}
  finally:
    for process in (*pair, parent):
      process.kill()
    os.kill(int(child), signal.SIGKILL)


def rows_of(report):
  """The lines of results.csv by trial."""
  rows = {}
  for row in csv.DictReader(report[0].read_text().splitlines()):
    rows.setdefault((row['variant'], row['seed']), []).append(row)
  return rows


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_three_kills_an_exhausted_memory_and_two_hosts_change_no_result(
  sweep, sweep_file, tmp_path
):
  sweep(*LONGER, variants=VARIANTS, out='whole')
  file, out = sweep_file(VARIANTS), tmp_path / 'out'
  trials = distinct(read_plan(tmp_path / 'whole' / 'study').trials)
  victim = next(t for t in trials if (t.variant, t.seed) == ('relu', 1))
  (tmp_path / 'site').mkdir()
  (tmp_path / 'site' / 'sitecustomize.py').write_text(SITE)
  environment = os.environ | {
    'PYTHONPATH': f'{tmp_path / "site"}:{os.environ.get("PYTHONPATH", "")}',
    'KILLED': victim.folder,
    # Holders that a loaded machine starves for seconds keep their leases; those that are killed here lose them at once.
    'T2X_LEASE_SECONDS': '60',
  }
  line = [sys.executable, '-m', 't2x', 'sweep', str(file), '--out', str(out), '--processes', '2']
  others = [out / 'trials' / t.folder for t in trials if t != victim]
  choose, kills = random.Random(SEED), []

  def ended():
    return sum((run / 'trial.json').exists() for run in others)

  def wait(condition):
    end = time.monotonic() + 600
    while not condition():
      assert time.monotonic() < end
      time.sleep(0.05)

  hosts, watch = Hosts([*line, *LONGER], environment, tmp_path), Watch(out / 'trials')
  watch.start()
  try:
    for count in (0, 1, 3):
      wait(lambda count=count: ended() >= count)
      time.sleep(choose.uniform(0, 4))
      wait(lambda: any(hosts.may_be_killed(i, others) for i in range(2)))
      index = choose.choice([i for i in range(2) if hosts.may_be_killed(i, others)] or [0])
      kills.append((index, ended(), len(hosts.running(index, others))))
      hosts.kill(index)
    codes = [process.wait(1200) for process in hosts.processes]
  finally:
    hosts.kill_all()
    watch.stop.set()
    watch.join()
  print(
    f'kills (host, trials ended, trials killed): {kills}; exit codes {codes}; {watch.looks} looks, at most '
    f'{watch.most} trials at once, {len(watch.together)} times a trial in two processes'
  )
  assert codes == [1, 1]
  # The kills hit trials.
  assert any(killed for *_, killed in kills)
  assert not watch.together and watch.most > 1
  reports = [rows_of(write_report(tmp_path / name / 'study')) for name in ('out', 'whole')]
  (failed,), _ = [report.pop(('relu', '1')) for report in reports]
  assert reports[0] == reports[1] and len(reports[0]) == 8
  assert failed['status'] == 'failed'
  # Another worker may take the trial over before the pool records the signal.
  assert failed['reason'].startswith('its process was killed in 2 attempts: ')
  log = (tmp_path / 'host-0.log').read_text() + (tmp_path / 'host-1.log').read_text()
  assert 'died (SIGKILL)' in log and 'restarted' in log
