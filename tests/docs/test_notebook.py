"""The notebook runs on a trained model, and is stored without outputs."""

import json

import matplotlib
import pytest
from pages import ROOT

from t2x.cli import main

NOTEBOOK = json.loads((ROOT / 'docs' / 'run_folder.ipynb').read_text())
CELLS = [cell for cell in NOTEBOOK['cells'] if cell['cell_type'] == 'code']
TINY = """
include '{configs}/runs/quickstart.gin'
d_model = 32
MLP.hidden_dim = 64
CausalLM:
  source = @TextFiles()
  tokenizer = @Bytes()
TextFiles:
  train = 'text.txt'
  validation = 'text.txt'
vocab_size = 261
Experiment.evaluations = {{}}
Trainer:
  num_steps = 4
  log_every = 2
"""


def test_outputs_are_not_stored():
  assert all(not cell['outputs'] and cell['execution_count'] is None for cell in CELLS)


@pytest.mark.slow
def test_all_cells_run(tmp_path, monkeypatch, capsys):
  matplotlib.use('agg')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  (tmp_path / 'text.txt').write_text('import os\\n\\nprint(os.getcwd())\\n' * 40)
  (tmp_path / 'tiny.gin').write_text(TINY.format(configs=ROOT / 'configs'))
  assert main(['train', 'tiny.gin', '--out', 'runs/quickstart']) == 0
  capsys.readouterr()
  names: dict = {}
  for cell in CELLS:
    exec(''.join(cell['source']), names)
  printed = capsys.readouterr().out
  assert 'LanguageModel, 261 tokens' in printed
  assert printed.count('layer ') == 2
  assert matplotlib.pyplot.get_fignums()
  matplotlib.pyplot.close('all')
