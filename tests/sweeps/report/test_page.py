"""report.html as a file, and the command that writes it."""

import json
import re
import threading

import pytest

from t2x.cli import main
from t2x.sweeps.report import read_results, watch, write_report
from t2x.sweeps.report.curves import curves


def data(text):
  """The JSON inside the page."""
  return json.loads(re.search(r'id="data">(.*?)</script>', text)[1])


def test_the_page_asks_no_network_and_escapes_what_users_wrote(sweep):
  folder = sweep()
  write_report(folder)
  text = (folder / 'report.html').read_text()
  assert text.count('</script>') == 2
  assert text.count('<script') == 2
  assert not re.search(r'(src|href)="(?!data:)', text)
  assert not re.search(r'\{\{\w+\}\}', text)
  links = set(re.findall(r'https?://[^\s"\'<]+', text))
  assert links == {'http://www.w3.org/2000/svg'}, 'a namespace, no address'
  told = data(text)
  assert told['unfinished'][0]['reason'].startswith('</script><b>loss</b>')
  assert [row['verdict'] for row in told['rows']] == [
    'baseline',
    'helps',
    'hurts',
    'inconclusive',
    'inconclusive',
  ]


def test_curves_match_the_runs(sweep):
  folder = sweep(seeds=2)
  found = curves(read_results(folder))
  assert found['metrics'] == ['eval/loss', 'train/loss', 'eval/accuracy']
  run = next(run for run in found['runs'] if (run['row'], run['seed']) == (1, 1))
  lines = (folder.parent / 'trials' / '0100abcdef-1' / 'metrics.jsonl').read_text().splitlines()
  evaluated = [one for one in map(json.loads, lines) if one['split'] == 'eval']
  part = run['splits']['eval']
  assert found['steps'][part['steps']] == [one['step'] for one in evaluated]
  assert part['values']['loss'] == [float(f'{one["loss"]:.5g}') for one in evaluated]
  # 0.05 seconds a step, a tenth more for seed 1, and 0.01 for the evaluation.
  assert part['seconds'] == pytest.approx(
    [0.055 * one['step'] + 0.01 for one in evaluated], rel=1e-3
  )
  assert run['work'] == 6.1e5 * 1024


def test_with_one_evaluation_the_training_curve_is_shown(sweep):
  folder = sweep(seeds=1)
  for path in folder.parent.glob('trials/*/metrics.jsonl'):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last = max(line['step'] for line in lines)
    kept = [line for line in lines if line['split'] == 'train' or line['step'] == last]
    path.write_text(''.join(json.dumps(line) + '\n' for line in kept))
  assert curves(read_results(folder))['metrics'][0] == 'train/loss'


def test_long_curves_are_thinned_to_common_steps(sweep):
  folder = sweep(effects={'vanilla': 0.0, 'fixup': 0.1}, steps=1000, every=1)
  found = curves(read_results(folder))
  full, short = (
    next(run for run in found['runs'] if (run['row'], run['seed']) == (1, seed)) for seed in (4, 0)
  )
  assert (full['status'], short['status']) == ('finished', 'diverged')
  steps, early = (found['steps'][run['splits']['train']['steps']] for run in (full, short))
  assert len(steps) <= 202
  assert (steps[-1], early[-1]) == (1000, 300)
  assert set(early[:-1]) <= set(steps)


@pytest.mark.slow
def test_a_page_of_45_variants_stays_small(sweep):
  effects = {'vanilla': 0.0} | {f'variant {number}': 0.01 * number for number in range(44)}
  folder = sweep(effects=effects, steps=2000, every=5)
  write_report(folder)
  assert (folder / 'report.html').stat().st_size < 3e6


def test_a_line_that_is_being_written_is_left_out(sweep):
  folder = sweep(ended=3)
  running = folder.parent / 'trials' / '0000abcdef-3'
  with (running / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 40, "spl')
  write_report(folder)
  assert data((folder / 'report.html').read_text())['ended'] == 3


def test_the_command(sweep, capsys):
  folder = sweep()
  assert main(['report', str(folder)]) == 0
  *lines, progress = capsys.readouterr().out.splitlines()
  header, baseline, geglu = (line.split() for line in lines[:3])
  assert header[:3] == ['variant', 'verdict', 'difference']
  assert (baseline[1], geglu[:2]) == ('baseline', ['geglu', 'helps'])
  assert 'Of 4 variants, geglu helps against the baseline vanilla by loss' in ' '.join(lines)
  assert progress.startswith('25 of 25 trials ended') and max(map(len, lines)) <= 80
  names = {'looks.json', 'results.csv', 'costs.csv', 'report.md', 'report.html', 'sweep.json'}
  assert {path.name for path in folder.iterdir()} == names
  assert main(['report', str(folder), '--json']) == 0
  assert json.loads(capsys.readouterr().out)['rows'][1]['verdict'] == 'helps'


def test_the_command_suggests_the_similar_folder(sweep, capsys):
  folder = sweep(seeds=1)
  assert main(['report', str(folder.parent)]) == 2
  assert f'did you mean {folder}?' in capsys.readouterr().err


def test_watching_writes_again_until_all_have_ended(sweep):
  folder = sweep()
  held = [folder.parent / 'trials' / f'0100abcdef-{seed}' / 'trial.json' for seed in (0, 1)]
  for path in held:
    path.rename(path.with_suffix('.held'))
  ended = []
  for results in watch(folder, 0.01):
    ended.append(results.ended)
    if held:
      path = held.pop()
      threading.Timer(0.05, path.with_suffix('.held').rename, [path]).start()
  assert ended == [23, 24, 25]
