"""Measures the host overhead of the training loop, relative to its compiled step.

python experiments/speed/host_overhead.py

Uses a model so small that the host limits the speed. The loop reads batches, transfers them to the device,
dispatches steps, logs, and checks every step for faults. The compiled step is called repeatedly on one
batch. Both are measured in turn; the overhead is the difference of their medians. CPU time is summed over
all threads of the process and depends less on the load of the machine than wall time.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

from t2x.process.allocator import set_allocator

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
  """Returns wall and CPU time in milliseconds."""
  return 1e3 * time.perf_counter(), 1e3 * time.process_time()


def time_step(run, steps: int) -> tuple[float, ...]:
  """Returns wall and CPU milliseconds per call of the compiled step."""
  import jax

  (state, frozen), train_step = run.init(), run.program.train_step()
  _, batch = next(run.train_batches(run.batches(run.rows('train')), 0))
  for count in (10, steps):
    start = clocks()
    for _ in range(count):
      state, *_ = train_step(state, frozen, batch)
    jax.block_until_ready(state)
  return tuple((now - then) / steps for then, now in zip(start, clocks(), strict=True))


class Clock:
  """A metric writer that records the time of each line of training metrics."""

  def __init__(self):
    self.lines: list[tuple[int, float, float]] = []

  def write(self, step, split, values):
    """Records the time of a line of training metrics."""
    if split == 'train':
      self.lines.append((step, *clocks()))

  def close(self):
    """Does nothing."""


def time_loop(experiment, folder: Path) -> tuple[float, ...]:
  """Returns wall and CPU milliseconds per step of the training loop, without the first and last interval."""
  from t2x.train import train

  clock = Clock()
  trainer = dataclasses.replace(experiment.trainer, writers=[lambda folder: clock])
  train(dataclasses.replace(experiment, trainer=trainer), folder, '')
  (first, *start), *_, (last, *end), _ = clock.lines
  return tuple((now - then) / (last - first) for then, now in zip(start, end, strict=True))


def main() -> None:
  """Prints the medians of the step and the loop, and their difference."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--steps', type=int, default=2000, help='steps per repetition')
  parser.add_argument('--repeat', type=int, default=5, help='repetitions')
  args = parser.parse_args()
  if args.steps < 500:
    parser.error('--steps must be at least 500, to have intervals between the first and the last')
  set_allocator()
  from t2x.experiments import read_config
  from t2x.train import TrainingRun

  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    config, text = folder / 'tiny.gin', folder / 'text.txt'
    text.write_text(Path(argparse.__file__).read_text())
    config.write_text(CONFIG.format(configs=CONFIGS, text=text, steps=args.steps))
    experiment = read_config([config]).build()
    run = TrainingRun(experiment, folder / 'step')
    times = [
      (time_step(run, args.steps), time_loop(experiment, folder / str(i)))
      for i in range(args.repeat)
    ]
  for name, clock in (('wall', 0), ('CPU', 1)):
    pairs = [(step[clock], loop[clock]) for step, loop in times]
    for step, loop in pairs:
      print(f'{name}: compiled step {step:.3f} ms, in the loop {loop:.3f} ms')
    step_median, loop_median = (statistics.median(column) for column in zip(*pairs, strict=True))
    overhead = f'the loop adds {loop_median - step_median:.3f} ms per step'
    print(f'{name} medians: {step_median:.3f} ms, {loop_median:.3f} ms; {overhead}')


if __name__ == '__main__':
  main()
