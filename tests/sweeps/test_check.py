"""`t2x check` of a sweep file, and sweep files and run files given to the wrong command."""

import pytest

from t2x.cli import main
from t2x.train import Cosine


@pytest.fixture
def check(sweep_file, capsys):
  """`check(variants, extra, *arguments)`: exit code, stdout and stderr of `t2x check`."""

  def run(variants, extra='', *arguments):
    code = main(['check', str(sweep_file(variants, extra)), *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err

  return run


def test_a_sweep_is_checked_with_all_its_variants(check, tmp_path):
  variants = """{
    'gelu': {},
    'same': {'MLP.activation': @gelu},
    'gated': {'Block.feed_forward': @GatedMLP, 'GatedMLP.hidden_dim': 32},
  }"""
  code, out, _ = check(variants, "  grid = {'d_model': [8, 16]}\n  match = None\n")
  assert code == 0
  assert 'ok; a sweep of 3 variants at 2 points with 2 seeds: 8 trials of 4 programs; ' in out
  assert 'gelu and same have the same config' in out
  assert {path.name for path in tmp_path.iterdir()} == {'base.gin', 'study.gin'}


def test_variants_that_fail_are_named(check):
  variants = """{
    'gelu': {},
    'typed': {'MLP.hidden_dim': 'x'},
    'heads': {'MultiHeadAttention.num_heads': 3},
    'fine': {'MLP.activation': @relu},
  }"""
  code, _, err = check(variants)
  assert code == 2 and "variant 'typed': MLP.hidden_dim " in err and "variant 'heads': " in err
  assert "'fine'" not in err and "'gelu'" not in err


def test_the_steps_of_every_variant_are_shaped(check):
  code, _, err = check("{'gelu': {}, 'odd': {'Trainer.batch_size': 33}}", '', '--devices', '2')
  assert code == 2 and "variant 'odd': " in err and '33' in err and "'gelu'" not in err


def test_a_part_that_uses_a_hyperparameter_as_a_number_is_an_error_before_training(
  check, monkeypatch
):
  monkeypatch.setattr(Cosine, 'after_warmup', lambda self, step, num_steps: self.peak + 0 * step)
  code, _, err = check("{'gelu': {}, 'relu': {'MLP.activation': @relu}}")
  assert code == 0  # Nothing varies.
  code, _, err = check("{'gelu': {}, 'rate': {'Cosine.peak': 3e-3}}")
  (line,) = err.splitlines()
  assert code == 2 and "study.gin: variant 'gelu': Cosine.peak varies between trials, " in line
  assert 'read it with t2x.base.hyperparameters.scalar inside the step' in line


def test_an_unreachable_budget_is_reported(check):
  code, _, err = check("{'gelu': {}, 'long': {'Trainer.num_steps': 24}}")
  assert code == 2 and "study.gin: variant 'long': 100.0% more steps than the baseline" in err


def test_budgets_in_seconds_are_not_measured(check):
  extra = "  match = 'seconds'\n  knob = 'Trainer.num_steps'\n"
  code, out, _ = check("{'gelu': {}, 'long': {'Trainer.num_steps': 24}}", extra)
  assert code == 0 and 'budgets in seconds are only measured by `t2x sweep`' in out


@pytest.mark.parametrize('command', ['train', 'show', 'diff'])
def test_other_commands_name_the_commands_for_a_sweep_file(command, sweep_file, capsys):
  file = sweep_file()
  assert main([command, str(file), *([str(file)] * (command == 'diff'))]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert (
    line == f't2x: {file} is a sweep file: `t2x sweep {file}` runs it, `t2x check {file}` checks it'
  )


def test_a_sweep_file_is_checked_without_other_files(sweep_file, capsys):
  file = sweep_file()
  assert main(['check', str(file.parent / 'base.gin'), str(file)]) == 2
  assert f'{file} is a sweep file, pass no other files: t2x check' in capsys.readouterr().err


def test_a_run_file_is_no_sweep(sweep_file, tmp_path, capsys):
  file = sweep_file().parent / 'base.gin'
  file.write_text(file.read_text() + 'import json\nTrainer.seed = 1\n')
  assert main(['sweep', str(file), '--out', str(tmp_path / 'out')]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert (
    f'{file} is not a sweep file: it does not bind Sweep; run an experiment with `t2x train' in line
  )


def test_a_sweep_file_with_an_unprintable_name_is_refused(sweep_file, capsys):
  file = sweep_file()
  file = file.rename(file.with_name('a\x1b[2J.gin'))
  assert main(['sweep', str(file), '--dry-run']) == 2
  assert "the name of the sweep file: 'a\\x1b[2J.gin' cannot be used" in capsys.readouterr().err
