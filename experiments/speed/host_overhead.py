"""How long the device waits for Python: the training loop against its bare compiled step.

python experiments/speed/host_overhead.py

A model so small that the host is what limits: the loop draws batches, puts them on the device,
dispatches, logs and looks at every step for faults; the bare step is called again and again on one
batch. The two alternate; the difference of their medians is what the loop adds to a step. CPU time, of all
threads of the process, depends less on what else the machine does.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

from t2x.allocator import set_allocator

CONFIGS = Path(__file__).parents[2] / 'configs'

CONFIG = """
include '{configs}/models/small_decoder.gin'
d_model = 16
num_layers = 1
vocab_size = 261
MLP.hidden_dim = 32
MultiHeadAttention.num_heads = 2
Experiment.task = @CausalLM()
CausalLM:
  source = @TextFiles()
  tokenizer = @Bytes()
  length = 16
TextFiles:
  train = '{text}'
  validation = '{text}'
Experiment.trainer = @Trainer()
Trainer:
  num_steps = {steps}
  batch_size = 4
  eval_every = 0
  checkpoint_every = 0
  eval_batches = 1
  schedule = @Constant()
Constant.peak = 1e-3
"""


def clocks() -> tuple[float, float]:
  """Wall and CPU time, in milliseconds."""
  return 1e3 * time.perf_counter(), 1e3 * time.process_time()


def bare(run, steps: int) -> tuple[float, ...]:
  """Wall and CPU milliseconds per step of the compiled step alone."""
  import jax

  state, frozen = run.init()
  _, batch = next(run.train_batches(run.batches(run.rows('train')), 0))
  for count in (10, steps):
    began = clocks()
    for _ in range(count):
      state, *_ = run.train_step(state, frozen, batch)
    jax.block_until_ready(state)
  return tuple((now - then) / steps for then, now in zip(began, clocks(), strict=True))


class Clock:
  """A metric writer that notes the time of each train line."""

  def __init__(self):
    self.lines: list[tuple[int, float, float]] = []

  def write(self, step, split, values):
    """Notes a line."""
    if split == 'train':
      self.lines.append((step, *clocks()))

  def close(self):
    """Nothing to close."""


def loop(experiment, folder: Path) -> tuple[float, ...]:
  """Wall and CPU milliseconds per step inside the training loop, without the first and last interval."""
  from t2x.train import train

  clock = Clock()
  trainer = dataclasses.replace(experiment.trainer, writers=[lambda folder: clock])
  train(dataclasses.replace(experiment, trainer=trainer), folder, '')
  (first, *began), *_, (last, *ended), _ = clock.lines
  return tuple((now - then) / (last - first) for then, now in zip(began, ended, strict=True))


def main() -> None:
  """Prints both medians and their difference."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--steps', type=int, default=2000, help='steps a repetition')
  parser.add_argument('--repeat', type=int, default=5, help='repetitions')
  args = parser.parse_args()
  set_allocator()
  from t2x.api import read_config
  from t2x.train import TrainingRun

  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    config, text = folder / 'tiny.gin', folder / 'text.txt'
    text.write_text(Path(argparse.__file__).read_text())
    config.write_text(CONFIG.format(configs=CONFIGS, text=text, steps=args.steps))
    experiment = read_config([config]).build()
    run = TrainingRun(experiment, folder / 'bare')
    times = [(bare(run, args.steps), loop(experiment, folder / str(i))) for i in range(args.repeat)]
  for name, clock in (('wall', 0), ('CPU', 1)):
    pairs = [(step[clock], whole[clock]) for step, whole in times]
    for step, whole in pairs:
      print(f'{name}: bare step {step:.3f} ms, in the loop {whole:.3f} ms')
    alone, inside = (statistics.median(column) for column in zip(*pairs, strict=True))
    adds = f'the loop adds {inside - alone:.3f} ms per step'
    print(f'{name} medians: {alone:.3f} ms, {inside:.3f} ms; {adds}')


if __name__ == '__main__':
  main()
