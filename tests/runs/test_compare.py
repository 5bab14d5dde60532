"""The page that compares runs has their curves and config differences, whatever is missing."""

import json
import re

import pytest

from t2x.base.errors import UserError
from t2x.cli import main
from t2x.data import Bytes, Characters
from t2x.runs.compare import MAX_POINTS, comparison, page

NASTY = '</script><b>loss</b> & "x"'


def data(text):
  """The JSON inside the page."""
  return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_curves_match_the_files(make_run):
  content = comparison([make_run('runs/a'), make_run('runs/b', losses=(2.5, 2.0))])
  assert [run['name'] for run in content['runs']] == ['a', 'b']
  assert content['metrics'] == [('eval', 'loss'), ('train', 'loss')]
  curve = content['runs'][0]['splits']['eval']
  assert (curve['steps'], curve['values']) == ([33, 66, 100], {'loss': [3.0, 1.0, 2.0]})
  assert curve['seconds'] == [3.3, 6.6, 10.0]
  assert content['problems'] == [] and content['differences'] == []


def test_long_curves_keep_their_last_point(make_run):
  lines = [
    {'step': step, 'split': 'train', 'loss': 1 / step} for step in range(1, 10 * MAX_POINTS + 4)
  ]
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  curve = comparison([make_run('a', metrics=text)])['runs'][0]['splits']['train']
  assert len(curve['steps']) <= MAX_POINTS and curve['steps'][-1] == lines[-1]['step']
  assert curve['values']['loss'][-1] == pytest.approx(lines[-1]['loss'], rel=1e-5)


def test_config_differences_are_relative_to_the_first(make_run):
  folders = [
    make_run('a'),
    make_run('b', batch_size=8, seed=3),
    make_run('c', seed=3),
  ]
  assert comparison(folders)['differences'] == [
    {'path': 'Experiment.trainer.batch_size', 'first': '4', 'values': ['', '8', '']},
    {'path': 'Experiment.trainer.seed', 'first': '0', 'values': ['', '3', '3']},
  ]


def test_runs_with_other_metrics_and_missing_files_are_compared(make_run):
  folders = [make_run(name) for name in ('no_config', 'bad_config', 'no_metrics', 'good')]
  (folders[0] / 'config.gin').unlink()
  (folders[1] / 'config.gin').write_text('Trainer.stepz = 1\n')
  (folders[2] / 'metrics.jsonl').write_text('')
  (folders[2] / 'timing.jsonl').unlink()
  (folders[3] / 'metrics.jsonl').write_text(
    '{"step": 1, "split": "eval", "accuracy": 0.5}\nbroken\n'
  )
  content = comparison(folders)
  assert content['metrics'] == [('eval', 'loss'), ('train', 'loss'), ('eval', 'accuracy')]
  assert content['reference'] == 2
  assert [run['has_config'] for run in content['runs']] == [False, False, True, True]
  problems = '\n'.join(content['problems'])
  for told in (
    'metrics.jsonl is damaged: line 2',
    'no_metrics: no metrics',
    'no_config has no config.gin',
    'bad_config: its config cannot be compared',
  ):
    assert told in problems


def test_values_that_are_not_finite_are_gaps(make_run):
  text = '{"step": 1, "split": "eval", "loss": null}\n{"step": 2, "split": "eval", "loss": 1e308}\n'
  text += '{"step": 3, "split": "eval", "loss": 2.0, "text": "bleu"}\n'
  curve = comparison([make_run('a', metrics=text)])['runs'][0]['splits']['eval']
  assert curve['values'] == {'loss': [None, None, 2.0]}


def test_the_page_asks_no_network_and_escapes_names(make_run):
  folder = make_run('</script><b>', 'failed', reason=NASTY, host=NASTY)
  text = page(comparison([folder]))
  assert text.count('</script>') == 2 and text.count('<script') == 2
  assert not re.search(r'(src|href)="(?!data:)', text)
  assert not re.search(r'\{\{\w+\}\}', text)
  assert set(re.findall(r'https?://[^\s"\'<]+', text)) == {'http://www.w3.org/2000/svg'}
  (run,) = data(text)['runs']
  assert (run['name'], run['reason']) == ('script><b>', NASTY)


def test_the_command_writes_the_page(make_run, tmp_path, capsys):
  a, b = make_run('a'), make_run('b')
  (b / 'metrics.jsonl').unlink()
  out = tmp_path / 'page.html'
  assert main(['runs', 'compare', str(a), str(b), '--out', str(out)]) == 0
  printed = capsys.readouterr()
  assert printed.out == f'{out}\n' and printed.err.endswith('t2x: b: no metrics\n')
  assert len(data(out.read_text())['runs']) == 2


def test_without_out_pages_are_in_the_first_run_and_replace_none(
  make_run, tmp_path, monkeypatch, capsys
):
  a, b = make_run('a'), make_run('b')
  (tmp_path / 'elsewhere').mkdir()
  monkeypatch.chdir(tmp_path / 'elsewhere')
  outputs = [a / 'compare.html', a / 'compare-2.html', a / 'compare-3.html']
  for output in outputs:
    assert main(['runs', 'compare', str(a), str(b)]) == 0
    assert capsys.readouterr().out == f'{output}\n'
  assert len(data(outputs[0].read_text())['runs']) == 2
  assert not list((tmp_path / 'elsewhere').iterdir())
  assert main(['runs', 'compare', str(tmp_path / 'none')]) == 2
  assert 'none is not a run folder' in capsys.readouterr().err


def test_folders_without_a_run_and_duplicates_are_refused(make_run, tmp_path):
  run = make_run('a')
  with pytest.raises(UserError, match='is not a run folder'):
    comparison([run, tmp_path])
  with pytest.raises(UserError, match='is the same run folder as'):
    comparison([run, tmp_path / 'a' / '..' / 'a'])
  assert main(['runs', 'compare', str(run), '--out', str(tmp_path / 'missing' / 'x.html')]) == 2


def test_a_figure_has_the_curves_of_the_runs(make_run, tmp_path, capsys, monkeypatch):
  from matplotlib.figure import Figure

  saved, save = [], Figure.savefig

  def savefig(self, path, **settings):
    saved.append((path.name, self))
    save(self, path, **settings)

  monkeypatch.setattr(Figure, 'savefig', savefig)
  runs = [str(make_run('runs/a')), str(make_run('runs/b', losses=(2.5, 2.0)))]
  out = str(tmp_path / 'curves.pdf')
  assert main(['runs', 'compare', *runs, '--out', out, '--metric', 'eval/loss']) == 0
  ((name, figure),) = saved
  (axes,) = figure.axes
  first, second = axes.get_lines()
  assert (name, axes.get_ylabel()) == ('curves.pdf', 'loss (eval)')
  assert (first.get_label(), [*first.get_xdata()]) == ('a', [33, 66, 100])
  assert axes.get_xlim() == (33, 100)
  assert [*first.get_ydata()] == [3.0, 1.0, 2.0] and second.get_ydata()[-1] == 2.0
  assert main(['runs', 'compare', *runs, '--out', out, '--metric', 'eval/los']) == 2
  assert "no run has 'eval/los'; did you mean 'eval/loss'?" in capsys.readouterr().err
  page_file = str(tmp_path / 'page.html')
  assert main(['runs', 'compare', *runs, '--out', page_file, '--metric', 'eval/loss']) == 2
  assert '--metric has no effect' in capsys.readouterr().err


def test_different_tokenizers_are_reported(make_run):
  folders = [make_run(name) for name in 'abc']
  for folder, tokenizer in zip(folders, (Bytes(), Bytes(), Characters()), strict=True):
    tokenizer.train(['a text']).save(folder / 'tokenizer')
  (problem,) = comparison(folders)['problems']
  assert problem.startswith('c: its tokenizer differs from that of a, so losses')
