"""Groups of trials that share a compiled program, as tasks of a job array."""

from t2x.sweeps.records import read_plan
from t2x.sweeps.runners import distinct


def test_a_group_runs_the_trials_of_its_program(sweep, tmp_path, outcomes):
  seeds = '--gin.Sweep.seeds=1'
  code, told = sweep('--group', '0')
  assert code == 2 and 'has no sweep.json: run `t2x sweep' in told.err
  assert sweep('--groups', seeds)[0] == 0
  trials = distinct(read_plan(tmp_path / 'out' / 'study').trials)
  code, told = sweep('--group', '1')
  assert code == 0 and '1 finished' in told.out
  ended = [outcomes()[trial.folder] is not None for trial in trials]
  assert ended == [False, True]
  code, told = sweep('--groups', seeds)
  assert told.out.splitlines()[-3:] == [
    f'    0  {trials[0].program}    0/1  gelu',
    f'    1  {trials[1].program}    1/1  relu',
    'groups to run: 0',
  ]
  for arguments, message in (
    (('--group', '2'), '--group 2: the sweep has 2 groups, numbered from 0'),
    (('--group', '0', seeds), 'has no effect on this command'),
    (('--group', '0', '--setting', 'a=1'), '--setting requires --runner'),
  ):
    code, told = sweep(*arguments)
    assert code == 2 and message in told.err
