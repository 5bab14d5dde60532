"""`t2x referee`: verdicts of tables are those of the arrays in them, and the output is documented."""

import json
from importlib import resources

import jsonschema
import numpy as np
import pytest
from scipy import stats

from t2x.base.errors import UserError
from t2x.cli import main
from t2x.statistics.comparisons import Sample, compare
from t2x.statistics.referee import judge
from t2x.statistics.table import Columns, read_table

SEEDS = 5


def values(count=3, seeds=SEEDS, items=None, generator=0):
  """Losses [variants, seeds] or [variants, seeds, items]; each variant is 0.1 better than the one before."""
  rng = np.random.default_rng(generator)
  shape = (count, seeds) if items is None else (count, seeds, items)
  shared = rng.normal(0, 0.05, (1, seeds) if items is None else (1, seeds, items))
  steps = -0.1 * np.arange(count).reshape(-1, *[1] * (len(shape) - 1))
  return 3 + steps + shared + rng.normal(0, 0.02, shape)


def write(path, losses, columns=('variant', 'seed', 'item')):
  lines = [','.join((*columns[: losses.ndim], 'loss'))]
  for index in np.ndindex(losses.shape):
    lines.append(
      ','.join(['abcdefghij'[index[0]], *map(str, index[1:]), repr(float(losses[index]))])
    )
  path.write_text('\n'.join(lines))
  return path


def ruling_of(path, **settings):
  columns = Columns()
  return judge(read_table(path, columns), columns, 'a', 'min', **settings)


def sample(losses):
  return Sample(dict(enumerate(map(float, losses))))


@pytest.mark.parametrize('count', [3, 9])
def test_the_verdicts_are_those_of_the_engine(tmp_path, count):
  losses = values(count)
  ruling = ruling_of(write(tmp_path / 'a.csv', losses), margin=0.05)
  base = sample(losses[0])
  expected = compare([(sample(own), base) for own in losses[1:]], 'min', margin=0.05)
  for (row, comparison), own, other in zip(ruling.compared, losses[1:], expected, strict=True):
    assert (comparison.verdict, comparison.p_corrected) == (other.verdict, other.p_corrected)
    assert row.p_plain == pytest.approx(stats.ttest_rel(own, losses[0]).pvalue, rel=1e-9)
    unpaired = own.var(ddof=1) + losses[0].var(ddof=1)
    assert row.gain == pytest.approx(unpaired / (own - losses[0]).var(ddof=1))


def test_the_noise_is_that_of_an_analysis_of_variance(tmp_path):
  losses = values(4)
  ruling = ruling_of(write(tmp_path / 'a.csv', losses))
  within = np.mean([own.var(ddof=1) for own in losses])
  assert ruling.noise == pytest.approx(np.sqrt(within))
  (signal,) = ruling.signals
  between = losses.mean(1).var(ddof=1) - within / SEEDS
  assert (signal.signal, signal.noise) == (
    pytest.approx(np.sqrt(between)),
    pytest.approx(np.sqrt(within)),
  )
  widths = [c.high - c.low for _, c in ruling.compared]
  assert ruling.floor == pytest.approx(np.median(widths) / 2)


def test_items_of_several_seeds_are_noise_and_of_one_run_are_pairs(tmp_path):
  losses = values(2, items=40)
  ((row, comparison),) = ruling_of(write(tmp_path / 'a.csv', losses)).compared
  assert (comparison.examples, comparison.pairs, row.sample.unit) == (40, SEEDS, 'seed')
  ruling = ruling_of(write(tmp_path / 'b.csv', losses[:, :1]))
  ((row, comparison),) = ruling.compared
  assert (ruling.unit, comparison.pairs) == ('item', 40)
  assert comparison.p == pytest.approx(stats.ttest_rel(losses[1, 0], losses[0, 0]).pvalue, rel=1e-9)
  assert any('noise of training' in text for text in ruling.uncorrected)


def test_failed_runs_count_as_failures_of_their_variant(tmp_path):
  losses = values(2, seeds=12)
  losses[1, :9] = np.nan
  path = write(tmp_path / 'a.csv', losses)
  with pytest.raises(UserError, match='row 13'):
    ruling_of(path)
  ((row, comparison),) = ruling_of(path, failed='worst').compared
  assert (comparison.verdict, comparison.by_rates, row.sample.diverged) == ('hurts', True, 9)
  ruling = ruling_of(path, failed='drop')
  assert ruling.compared[0][1].pairs == 3 and any(
    '--failed drop' in text for text in ruling.uncorrected
  )


def test_a_single_run_an_unknown_baseline_and_a_missing_size_are_refused(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text('variant,seed,loss\na,0,1\na,1,2\nb,0,1\n')
  with pytest.raises(UserError, match="row 3: variant 'b' has a single run"):
    ruling_of(path)
  with pytest.raises(UserError, match="no variant 'c'"):
    judge(read_table(path, Columns()), Columns(), 'c', 'min')
  path.write_text('variant,seed,size,loss\na,0,S,1\na,1,S,2\nb,0,M,1\nb,1,M,1.5\n')
  with pytest.raises(UserError, match="'b' has size 'M', but the baseline 'a' has not"):
    ruling_of(path)


def test_the_json_matches_its_schema_and_the_text_has_80_columns(tmp_path, capsys, monkeypatch):
  monkeypatch.setenv('COLUMNS', '80')
  schema = json.loads((resources.files('t2x.statistics') / 'referee.schema.json').read_text())
  jsonschema.Draft202012Validator.check_schema(schema)
  path = str(write(tmp_path / 'a.csv', values(3)))
  assert main(['referee', path, '--baseline', 'a', '--json']) == 0
  jsonschema.validate(json.loads(capsys.readouterr().out), schema)
  page = tmp_path / 'a.html'
  assert main(['referee', path, '--baseline', 'a', '--html', str(page)]) == 0
  text = capsys.readouterr().out
  assert max(map(len, text.splitlines())) <= 80
  for part in (
    'helps',
    'Noise floor',
    'Signal to noise of loss',
    'Pairing by seed',
    'Not corrected for',
    '5 seeds: 23 %',
  ):
    assert part in text
  assert 'Not corrected for' in page.read_text()


def test_needed_options_are_named(tmp_path, capsys):
  path = write(tmp_path / 'a.csv', values(2))
  assert main(['referee', str(path)]) == 2
  assert '--baseline is needed: one of a, b' in capsys.readouterr().err
  path.write_text(path.read_text().replace('loss', 'accuracy'))
  assert main(['referee', str(path), '--baseline', 'a', '--metric', 'accuracy']) == 2
  assert '--goal is needed' in capsys.readouterr().err
  assert (
    main(['referee', str(path), '--baseline', 'a', '--metric', 'accuracy', '--html', str(path)])
    == 2
  )
  assert 'would replace a file' in capsys.readouterr().err
