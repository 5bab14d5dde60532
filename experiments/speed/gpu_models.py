"""GPT-2 models and random data for a benchmark on a machine that has only jax, flax, optax and orbax."""

import dataclasses
import importlib.util
import sys

# Bytes per second of a device's memory by `jax.Device.device_kind`, from NVIDIA's data sheets.
MEMORY_BANDWIDTH = {
  'NVIDIA H200': 4.8e12,
  'NVIDIA H100 80GB HBM3': 3.35e12,
  'NVIDIA A100-SXM4-80GB': 2.0e12,
}


@dataclasses.dataclass(frozen=True)
class Size:
  """A GPT-2: width, layers, heads, tokens per row, rows per step, rows of the embedding table; and the number of experts of a
  layer, of which each token chooses two of half the hidden width, so that the FLOPs are those of the dense model. 0: no experts."""

  width: int
  layers: int
  heads: int
  length: int
  batch: int
  vocab: int = 50304
  experts: int = 0

  @property
  def matrices(self) -> int:
    """Parameters in matrices that a token uses, without routers."""
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
GOALS = {'124M': 0.45, '350M': 0.5, '1.3B': 0.55}
TINY = Size(32, 2, 2, 32, 4, 384)


def stand_in_for_packages() -> None:
  """Stands in for packages that t2x imports and this benchmark does not need, where they are not installed."""
  import types
  from unittest import mock

  def missing(name: str) -> bool:
    return importlib.util.find_spec(name) is None

  if missing('jaxtyping'):
    import jax

    class Annotation:
      def __class_getitem__(cls, item):
        return object

    module = types.ModuleType('jaxtyping')
    names = dict.fromkeys(('Bool', 'Float', 'Int', 'Int8', 'UInt8', 'Key', 'Shaped'), Annotation)
    vars(module).update(names, Array=jax.Array)
    sys.modules['jaxtyping'] = module
  if missing('sentencepiece'):
    sys.modules['sentencepiece'] = mock.MagicMock()
  if missing('tensorboardX'):
    for name in ('', '.proto', '.proto.event_pb2', '.record_writer', '.summary'):
      sys.modules[f'tensorboardX{name}'] = mock.MagicMock()


def device_limits() -> tuple[float, float] | None:
  """Returns peak FLOP/s and bytes/s of the device; None if they are unknown."""
  import jax

  from t2x.train.logs.flops import PEAK_FLOPS

  kind = jax.devices()[0].device_kind
  return (PEAK_FLOPS[kind], MEMORY_BANDWIDTH[kind]) if kind in MEMORY_BANDWIDTH else None


def language_model(size: Size):
  """Returns a constructor of the model."""
  import functools

  from t2x.layers import (
    MLP,
    Dropless,
    LearnedPositions,
    MixtureOfExperts,
    MultiHeadAttention,
    PreNorm,
    TokenEmbedding,
    gelu,
  )
  from t2x.models import Block, Decoder, LanguageModel, Stack, TiedHead

  part = functools.partial
  feed_forward = part(MLP, hidden_dim=4 * size.width, activation=gelu)
  if size.experts:
    expert = part(MLP, hidden_dim=2 * size.width, activation=gelu)
    feed_forward = part(
      MixtureOfExperts, num_experts=size.experts, expert=expert, dispatch=Dropless()
    )
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=size.heads),
    feed_forward=feed_forward,
    wiring=PreNorm,
  )
  return part(
    LanguageModel,
    d_model=size.width,
    embedding=part(TokenEmbedding, vocab_size=size.vocab),
    body=part(
      Decoder,
      stack=part(Stack, num_layers=size.layers, blocks=[block]),
      encoding=part(LearnedPositions, max_length=size.length),
    ),
    head=TiedHead,
  )


def experiment_of(size: Size, steps: int, packed: bool = False):
  """Returns the experiment: random rows from memory, whose tokens are as frequent as 1 / rank."""
  import numpy as np

  from t2x.data import Bytes, ConcatenateAndSplit, FullRows
  from t2x.tasks import CausalLM
  from t2x.train import Cosine, Experiment, Trainer

  class RowsInMemory:
    def __init__(self, number: int):
      self.ids = size.vocab ** np.random.default_rng(0).random((number, size.length)) - 1

    def __len__(self):
      return len(self.ids)

    def __getitem__(self, index):
      row = np.arange(size.length, dtype=np.int32)
      return {'tokens': self.ids[index].astype(np.int32), 'segments': row * 0 + 1, 'positions': row}

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class RandomTokens(CausalLM):
    def check_split(self, split):
      pass

    def fit_tokenizer(self):
      return self.tokenizer.fit(lambda: (), source_fingerprint='')

    def rows(self, split):
      return RowsInMemory(4096 if split == self.train_split else size.batch)

  return Experiment(
    model=language_model(size),
    task=RandomTokens(
      tokenizer=Bytes(),
      length=size.length,
      packing=ConcatenateAndSplit if packed else FullRows,
    ),
    trainer=Trainer(
      num_steps=steps,
      batch_size=size.batch,
      compute_dtype='bfloat16',
      schedule=Cosine(peak=6e-4, warmup_steps=max(1, steps // 10)),
      log_every=10,
      eval_every=0,
      checkpoint_every=steps // 2,
    ),
  )
