"""Damaged files in a sweep's folder: reports and sweeps say which, and go on with the rest."""

import json
import random
from pathlib import Path

import pytest

from t2x.base.errors import is_printable
from t2x.cli import main
from t2x.sweeps.records import Outcome, Plan, Trial, read_plan, write_outcome, write_plan
from t2x.sweeps.stages import Stage
from t2x.sweeps.sweep import Sweep

VALUES = [
  None, True, -1, 0, 3, 0.5, 1e308, -1e308, 5e-324, 10**30, 10**400, float('nan'), float('inf'),
  '', 'x', '1', '=1+1', '\x1b[31mred', '\ud800', 'a\nb', '..', '/etc/passwd', [], [1], [[]], {},
  {'loss': 1.0}, {'': {}}, {'__proto__': 1},
]  # fmt: skip


@pytest.fixture
def finished(tmp_path):
  """A folder OUT/study whose trials have ended: two variants with two seeds, on a grid."""
  trials = tuple(
    Trial(
      variant=variant,
      point={'d_model': 16},
      seed=seed,
      identity=variant * 4,
      folder=f'{variant * 4}-{seed}',
      numbers={'Cosine.peak': 1e-3},
      changes=(f'MLP.activation = @{variant}',),
      parameters=1000,
      flops_per_token=6e5,
      tokens_per_step=64,
      num_steps=8,
    )
    for variant in ('gelu', 'relu')
    for seed in (0, 1)
  )
  plan = Plan(
    name='study',
    baseline='gelu',
    metric='loss',
    goal='min',
    matched='steps',
    config='d_model = 16\n',
    versions={'jax': '0.10.2'},
    commit='0123abc',
    trials=trials,
  )
  write_plan(tmp_path / 'out' / 'study', plan)
  for trial in trials:
    run = tmp_path / 'out' / 'trials' / trial.folder
    run.mkdir(parents=True)
    for name, fields in (('metrics', {'loss': 2.5, 'tokens_per_second': 9.0}), ('timing', {})):
      lines = [
        {'step': step, 'split': split, **fields, 'seconds': 0.5 * step}
        for step in (2, 4, 6, 8)
        for split in ('train', 'eval')
      ]
      (run / f'{name}.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    loss = 2.0 + 0.1 * trial.seed + 0.01 * len(trial.folder)
    outcome = Outcome(status='finished', metrics={'loss': loss, 'accuracy': 0.5}, seconds=4.0)
    write_outcome(run, outcome)
  return tmp_path / 'out' / 'study'


def run(folder, capsys):
  """`t2x report`: its exit code, and what it printed on stderr."""
  code = main(['report', str(folder)])
  return code, capsys.readouterr().err


def places(value, path=()):
  """Paths of all values within JSON."""
  yield path
  inner = (
    value.items()
    if isinstance(value, dict)
    else enumerate(value)
    if isinstance(value, list)
    else ()
  )
  for key, one in inner:
    yield from places(one, (*path, key))


def changed(text, choose):
  """JSON with one value replaced, removed or added."""
  value = json.loads(text)
  path = choose.choice(list(places(value)))
  new = choose.choice(VALUES)
  if not path:
    return json.dumps(new)
  inner = value
  for key in path[:-1]:
    inner = inner[key]
  kind = choose.random()
  if kind < 0.2:
    del inner[path[-1]]
  elif kind < 0.3 and isinstance(inner, dict):
    inner[choose.choice(['future', '\x1b[2J', ''])] = new
  else:
    inner[path[-1]] = new
  return json.dumps(value)


def damage(path, choose):
  """Changes a file so that it is, perhaps, no longer what t2x wrote."""
  content = path.read_bytes()
  lines = content.decode().splitlines(keepends=True)
  kind = choose.randrange(10)
  if kind == 0:
    content = content[: choose.randrange(len(content))]
  elif kind == 1:
    content = choose.choice(
      [b'', b'\n', b'null', b'\x00' * 40, b'[' * 100_000, b'{"a":' * 3000, 'ä'.encode('utf-16')]
    )
  elif kind == 2:
    at = choose.randrange(len(content))
    content = content[:at] + choose.randbytes(choose.randrange(1, 9)) + content[at + 1 :]
  elif kind == 3:
    path.unlink()
    path.mkdir()
    return
  elif kind == 4:
    del lines[choose.randrange(len(lines))]
    content = ''.join(lines).encode()
  elif path.suffix == '.jsonl':
    at = choose.randrange(len(lines))
    lines[at] = changed(lines[at], choose) + '\n'
    content = ''.join(lines).encode()
  else:
    content = changed(content, choose).encode()
  path.write_bytes(content)


@pytest.mark.parametrize('seed', range(20))
def test_no_damage_is_more_than_a_line(finished, seed, capsys, monkeypatch):
  plan, choose = read_plan(finished), random.Random(seed)
  files = [finished / 'sweep.json', *sorted(finished.parent.glob('trials/*/*.json*'))]
  for path in choose.sample(files, choose.choice([1, 1, 2])):
    damage(path, choose)
  code, told = run(finished, capsys)
  assert code in (0, 2), told
  assert 'Traceback' not in told and all(map(is_printable, told.splitlines()))
  if code == 2:
    assert f'{finished}/sweep.json is damaged: ' in told and len(told.splitlines()) == 1
  for name in ('report.md', 'results.csv', 'costs.csv') if code == 0 else ():
    assert all(map(is_printable, (finished / name).read_text().split('\n')))
  # What is planned again is the same.
  sweep = Sweep(base='x.gin', variants={'gelu': {}}, baseline='gelu', file=Path('study.gin'))
  monkeypatch.setattr('t2x.sweeps.run.read_sweep', lambda *_: sweep)
  monkeypatch.setattr('t2x.sweeps.run.stages', lambda *_: [Stage('', plan, {})])
  line = ['sweep', str(finished.parent.parent / 'study.gin'), '--out', str(finished.parent)]
  code = main([*line, '--dry-run'])
  told = capsys.readouterr()
  assert code == 0 and 'Traceback' not in told.err
