"""The start screen."""

import dataclasses
import functools
import math
import re
from pathlib import Path

import jax
import pytest
from counted_models import TEXT, attention, encoder_decoder, language_model, vision_model

from t2x.data import FullRows
from t2x.layers import (
  Dense,
  LearnedPositions,
)
from t2x.parallel import Mesh
from t2x.tasks import CausalLM, ImageClassification, Translation
from t2x.train import AdamW, Experiment, Trainer, TrainingRun
from t2x.train.experiment import row_lengths
from t2x.train.logs.flops import flops_per_token
from t2x.train.logs.summary import (
  attention_kernels,
  end_screen,
  model_table,
  parameter_screen,
  sample_text,
  start_screen,
)
from t2x.train.logs.writers import JsonLines
from t2x.train.params import Blueprint

LONG = functools.partial(LearnedPositions, max_length=4096)


def test_the_table_counts_every_parameter_and_names_stacked_layers():
  model = language_model()
  table = model_table(model)
  total = sum(leaf.size for leaf in jax.tree.leaves(model))
  assert table.splitlines()[-1].split() == ['total', f'{total:,}']
  row = next(line for line in table.splitlines() if 'mixer.q.kernel' in line)
  assert ' '.join(row.split()[1:]) == '3 x 16 x 2 x 8 layers embed heads head_dim matrix 768'
  row = next(line for line in table.splitlines() if 'mixer_wiring.norm.scale' in line)
  assert ' '.join(row.split()[1:]) == '3 x 16 layers embed vector 48 float32'


def test_images_are_counted_in_patches():
  model = vision_model()
  task = ImageClassification(source=TEXT['source'], image_shape=(8, 8, 1), num_classes=10)
  assert row_lengths(task, model) == {'': 17}
  assert attention_kernels(model, task)[0].startswith('Dense()')


def test_the_kernel_chosen_by_auto_is_printed_with_its_reason():
  long = CausalLM(**TEXT, length=4096)
  assert 'Blockwise' in attention_kernels(language_model(encoding=LONG), long)[0]
  assert '4096 x 4096' in attention_kernels(language_model(encoding=LONG), long)[0]
  fixed = attention_kernels(language_model(encoding=LONG, mixer=attention(kernel=Dense())), long)
  assert len(fixed) == 1
  assert fixed[0].startswith('Dense() under')


def test_the_kernel_is_chosen_for_rows_with_segments_or_without(monkeypatch):
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  task = CausalLM(**TEXT, length=4096)
  assert 'Blockwise' in attention_kernels(language_model(encoding=LONG), task, 'bfloat16')[0]
  task = dataclasses.replace(task, packing=FullRows)
  assert attention_kernels(language_model(encoding=LONG), task, 'bfloat16')[0].startswith(
    "XLA(implementation='cudnn')"
  )


class BareRun(TrainingRun):
  """A run whose parts are set, not computed."""

  task = trainer = mesh = None


class Program:
  """What the screens read of a program."""

  layout, batch_size = None, 4

  def __init__(self, run, model):
    self.run, self.trainer, self.blueprint = run, run.trainer, Blueprint(model)

  @property
  def flops(self):
    return flops_per_token(self.run.task, self.blueprint.shapes)

  @property
  def row_lengths(self):
    return row_lengths(self.run.task, self.blueprint.shapes)


def run_of(model, folder='runs/x', **settings):
  """A run without data and devices' memory."""
  run = object.__new__(BareRun)
  run.task = CausalLM(**TEXT, length=32)
  run.trainer = Trainer(**{'num_steps': 10, 'batch_size': 4, 'optimizer': AdamW()} | settings)
  run.experiment = Experiment(task=run.task, trainer=run.trainer)
  run.folder, run.mesh = Path(folder), Mesh(num_devices=1).build()
  run.program = Program(run, model)
  return run


@pytest.mark.parametrize('width', [80, 100])
def test_the_start_screen_fits_in_a_few_lines(width):
  run = run_of(language_model(), eval_every=4, eval_batches=3, ema_decay=0.9)
  screen = start_screen(run, [{}] * 20, 5, width)
  text = re.sub('\n *', ' ', screen)
  for part in (
    'LanguageModel, ',
    ': 3 layers, length 64, embed 16, mlp 32, heads 2 x 8',
    ' k per token (full attention: ',
    ' k), ',
    f'1 x cpu, jax {jax.__version__}, float32 ',
    'under Causal() ',
    '20 rows, train split of TextFiles',
    '5 to 10 (resumed), batches of 4 rows, 2 epochs',
    'validation split every 4 steps (3 batches) and at the end',
    'EMA weights (decay 0.9)',
    'evaluation and generation in float32',
    'runs/x',
  ):
    assert part in text, part
  assert len(screen.splitlines()) <= 14
  assert max(map(len, screen.splitlines())) <= width


def test_the_flags_of_gpus_are_on_the_start_screen(monkeypatch):
  monkeypatch.setenv('JAX_OPTIMIZATION_LEVEL', 'O1')
  run = run_of(language_model())
  assert 'GPU flags' not in start_screen(run, [{}], 0, 100)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  assert re.search('GPU flags .*JAX_OPTIMIZATION_LEVEL=O1', start_screen(run, [{}], 0, 100))


def test_float32_on_an_accelerator_names_the_file_with_bfloat16(monkeypatch):
  assert 'bf16.gin' not in start_screen(run_of(language_model()), [{}], 0, 100)
  for backend in ('gpu', 'tpu'):
    monkeypatch.setattr(jax, 'default_backend', lambda backend=backend: backend)
    assert 't2x:precision/bf16.gin' in start_screen(run_of(language_model()), [{}], 0, 200)


def test_the_parameter_table_and_the_reckoning_are_apart_from_the_start_screen():
  run = run_of(language_model())
  assert '3 x the multiply-adds' in parameter_screen(run)
  assert model_table(language_model()) in parameter_screen(run)
  assert 'dtypes: compute in float32; parameters, logits, softmax' in parameter_screen(run)
  assert 'mixer.q.kernel' not in start_screen(run, [{}] * 20, 0, 80)


def test_both_sides_of_an_encoder_decoder_have_their_layers_and_widths():
  run = run_of(encoder_decoder())
  run.task = Translation(**TEXT, source_length=24, target_length=8)
  screen = start_screen(run, [{}], 0, 100)
  for part in ('encoder', 'decoder'):
    assert re.search(rf'\n {{12}}{part} [\d,]+: 3 layers, .*mlp 32', screen), screen


def test_the_end_screen_has_time_best_and_last_metrics_folder_and_commands(tmp_path):
  run = run_of(language_model(), tmp_path / 'a run', num_steps=1000)
  lines = JsonLines(run.folder / 'metrics.jsonl')
  for step, loss in ((250, math.nan), (500, 1.25), (750, 1.25), (1000, 1.5)):
    lines.write(step, 'train', {'loss': 0.5})
    lines.write(step, 'eval', {'loss': loss})
  lines.close()
  screen = end_screen(
    run, run.trainer.num_steps, {'loss': 1.5, 'eval_tokens': 245111.0}, 3723.0, 80
  )
  folder = tmp_path / 'a run'
  assert screen.splitlines()[1:4] == [
    'finished    1,000 steps in 1:02:03',
    'best        loss 1.25 at step 750',
    'last        loss 1.5  eval_tokens 245,111',
  ]
  assert ''.join(str(folder).split()) in ''.join(screen.split())
  assert screen.splitlines()[-3:] == [
    f"next        t2x eval '{folder}'",
    f"            t2x generate '{folder}' --prompt 'TEXT'",
    f"            t2x look '{folder}' --prompt 'TEXT'",
  ]


def test_samples_are_cut_to_three_lines_of_the_terminal():
  lines = sample_text({'prompt': 'a\nb', 'output': 'x' * 500}, 80).splitlines()
  assert lines[0] == r"  prompt   'a\nb'"
  assert len(lines) == 5
  assert max(map(len, lines)) == 80
  assert lines[-1].split() == ['...']
