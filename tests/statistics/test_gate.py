"""`t2x gate`: only fresh seeds pass, each confirmation once, at a level whose sum is 5 %."""

import json

import numpy as np
import pytest

from t2x.cli import main
from t2x.statistics.gate import level_of, read_ledger


@pytest.fixture
def gate(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  return lambda *arguments: main(['gate', '--ledger', 'ledger.json', *arguments])


def choose(gate, *arguments):
  return gate('--choose', 'b', '--baseline', 'a', *arguments)


def run_seeds(tmp_path, effect, noise=0.01, skip=0, seed=0):
  """Writes the results of all fresh seeds but the last `skip` of the variant, and of two screening seeds."""
  rng = np.random.default_rng(seed)
  choice = read_ledger(tmp_path / 'ledger.json').choices[-1]
  lines = ['variant,seed,loss', 'b,0,0.0', 'b,1,0.0', 'a,0,9.0', 'a,1,9.0', 'c,0,1.0']
  for side, mean, seeds in (
    ('a', 3.0, choice.seeds),
    ('b', 3.0 + effect, choice.seeds[: len(choice.seeds) - skip]),
  ):
    lines += [f'{side},{seed},{mean + noise * rng.normal()}' for seed in seeds]
  (tmp_path / 'fresh.csv').write_text('\n'.join(lines))
  return 'fresh.csv'


def test_the_levels_add_up_to_five_percent():
  assert sum(level_of(number) for number in range(1, 100_000)) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(
  ('effect', 'noise', 'code'), [(-0.1, 0.01, 0), (0.1, 0.01, 3), (0.0, 0.1, 4)]
)
def test_the_exit_code_is_the_verdict_of_the_fresh_seeds(gate, tmp_path, effect, noise, code):
  """The screening seeds of the table would say 'helps' each time."""
  assert choose(gate) == 0
  assert gate(run_seeds(tmp_path, effect, noise)) == code


def test_a_difference_within_the_margin_is_the_same(gate, tmp_path):
  assert choose(gate, '--margin', '0.5') == 0
  assert gate(run_seeds(tmp_path, -0.1)) == 3
  assert read_ledger(tmp_path / 'ledger.json').choices[0].verdict == 'same'


def test_incomplete_pairs_are_refused_and_the_choice_stays_open(gate, tmp_path, capsys):
  choose(gate)
  assert gate(run_seeds(tmp_path, -0.1, skip=1)) == 5
  assert 'incomplete pairs' in capsys.readouterr().err
  assert gate(run_seeds(tmp_path, -0.1)) == 0


def test_a_choice_is_judged_once(gate, tmp_path, capsys):
  choose(gate)
  table = run_seeds(tmp_path, 0.0, seed=1)
  code = gate(table)
  assert gate(table) == code
  assert gate(run_seeds(tmp_path, -0.1, seed=2)) == 5
  assert 'peeked: choice 1 was already judged' in capsys.readouterr().err


def test_a_tuned_value_at_the_edge_of_its_grid_is_refused(gate, tmp_path):
  assert choose(gate, '--tuned', '0.1:0.1,0.2,0.3') == 5
  assert choose(gate, '--tuned', '0.1') == 2
  assert not (tmp_path / 'ledger.json').exists()
  assert choose(gate, '--tuned', '0.2:0.1,0.2,0.3') == 0


def test_the_next_choice_has_other_seeds_and_a_lower_level(gate, tmp_path, capsys):
  choose(gate)
  assert choose(gate) == 2
  assert 'choice 1' in capsys.readouterr().err
  gate(run_seeds(tmp_path, 0.0))
  assert choose(gate) == 0
  first, second = read_ledger(tmp_path / 'ledger.json').choices
  assert not {*first.seeds} & {*second.seeds}
  assert second.level == pytest.approx(first.level / 4)


def test_few_seeds_of_a_late_confirmation_are_refused(gate, tmp_path, capsys):
  for _ in range(4):
    choose(gate)
    gate(run_seeds(tmp_path, 0.0))
  assert choose(gate, '--seeds', '3') == 2
  assert 'confirmation 5 needs at least' in capsys.readouterr().err


def test_an_edited_ledger_is_noticed(gate, tmp_path, capsys):
  choose(gate)
  gate(run_seeds(tmp_path, 0.0, noise=0.1))
  choose(gate)
  path = tmp_path / 'ledger.json'
  content = json.loads(path.read_text())
  content['choices'][0]['verdict'] = 'helps'
  path.write_text(json.dumps(content))
  assert gate(run_seeds_of(content, tmp_path)) == 2
  assert 'were changed' in capsys.readouterr().err


def run_seeds_of(content, tmp_path):
  seeds = content['choices'][-1]['seeds']
  (tmp_path / 'other.csv').write_text(
    '\n'.join(['variant,seed,loss', *(f'{side},{seed},{seed}' for side in 'ab' for seed in seeds)])
  )
  return 'other.csv'


def test_options_without_effect_are_refused(gate, tmp_path, capsys):
  choose(gate)
  table = run_seeds(tmp_path, 0.0)
  for arguments in (
    (),
    (table, '--goal', 'min'),
    (table, '--metric', 'accuracy'),
    (table, '--seed', 'none'),
    (table, '--only', 'b'),
    (table, '--failed', 'drop'),
    ('--choose', 'b', '--baseline', 'a', '--item', 'i'),
  ):
    assert gate(*arguments) == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize(
  ('option', 'message'),
  [
    (('--item', 'i'), 'belongs to the TABLE of a confirmation'),
    (('--metric', 'loss', '--metric', 'other_loss'), 'a choice has one metric, loss'),
  ],
)
def test_a_choice_with_an_option_without_effect_is_not_recorded(
  gate, tmp_path, capsys, option, message
):
  assert choose(gate, *option) == 2
  assert message in capsys.readouterr().err
  assert not (tmp_path / 'ledger.json').exists()
