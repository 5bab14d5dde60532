"""FLOPs of a sweep's trials, and their convention."""

from t2x.sweeps.plan import make_plan
from t2x.sweeps.plan_table import plan_table
from t2x.sweeps.sweep import read_sweep


def test_the_table_prints_flops_with_and_without_hidden_pairs(sweep_file, tmp_path):
  file = sweep_file(base='Block.pattern = @Window()\nWindow.size = 2\n')
  made, _ = make_plan(read_sweep(file))
  trial = made.trials[0]
  assert 0 < trial.flops_per_token < trial.full_flops_per_token
  text = plan_table(made, tmp_path)
  row = f'{trial.flops_per_token:.4g} {trial.full_flops_per_token:.4g}'
  assert row in ' '.join(text.split())
  assert 'FLOPs: attention counts the pairs that its pattern shows' in text
