"""Sizes of GPT-2 for the benchmark of a GPU: their experiments, and their FLOPs by formula."""

import dataclasses
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Size:
  """A GPT-2: width, layers, heads, tokens per row, rows per step, rows of the embedding table."""

  width: int
  layers: int
  heads: int
  length: int
  batch: int
  vocab: int = 50304

  @property
  def matrices(self) -> int:
    """Parameters in matrices."""
    return 12 * self.layers * self.width**2 + self.vocab * self.width

  def flops(self, all_pairs: bool = False) -> float:
    """FLOPs of training per token, with all pairs of tokens or those that causal attention shows."""
    pairs = self.length if all_pairs else (self.length + 1) / 2
    return 6 * self.matrices + 12 * self.layers * self.width * pairs


SIZES = {
  '124M': Size(768, 12, 12, 1024, 32),
  '350M': Size(1024, 24, 16, 1024, 32),
  '1.3B': Size(2048, 24, 16, 2048, 8),
}
TINY = Size(32, 2, 2, 32, 4, 384)


def experiment_of(size: Size, **trainer: object):
  """Returns the experiment of configs/models/gpt2_small.gin and gpt2_bf16.gin at another size, on full rows of bytes.

  Args:
    size: the size.
    trainer: settings of the trainer.
  """
  from t2x.experiments import read_experiment

  values = {
    'd_model': size.width,
    'num_layers': size.layers,
    'MultiHeadAttention.num_heads': size.heads,
    'MLP.hidden_dim': 4 * size.width,
    'TokenEmbedding.vocab_size': size.vocab,
    'LearnedPositions.max_length': size.length,
    'CausalLM.length': size.length,
    'CausalLM.packing': '@FullRows',
    # A short evaluation at the end of a run.
    'CausalLM.source': '@Part()',
    'Part.source': '@StandardLibrary()',
    'Part.examples': {'validation': 4},
    'Trainer.batch_size': size.batch,
    'Trainer.eval_every': 0,
    'Trainer.keep_last': 1,
    'Trainer.keep_best': 0,
    # One program for any number of steps.
    'Trainer.schedule': '@Constant()',
    'Constant.peak': 6e-4,
    'Constant.warmup_steps': 10,
    **{f'Trainer.{name}': value for name, value in trainer.items()},
  }
  files = [ROOT / 'configs/models/gpt2_small.gin', ROOT / 'experiments/speed/gpt2_bf16.gin']
  return read_experiment(files, [f'{name}={value}' for name, value in values.items()])


def device_limits() -> tuple[float | None, float | None]:
  """Returns peak FLOP/s in bfloat16 and bytes/s of the memory of the device; None if they are unknown."""
  import jax

  from t2x.plan.hardware import DEVICES
  from t2x.train.logs.flops import PEAK_FLOPS

  kind = jax.devices()[0].device_kind
  bandwidths = {device.jax_kind: device.memory_bandwidth for device in DEVICES.values()}
  return PEAK_FLOPS.get(kind), bandwidths.get(kind)
