"""Milliseconds per decoded token and size of the cache by the number of heads of keys and values.

python experiments/grouped_queries/decode.py

Greedy decoding by a decoder of width 512 with 4 layers and 8 query heads, 16 prompts of 32 tokens, random weights. The
models take turns; printed are medians over the rounds, and the speed relative to 8 heads.
"""

import argparse
import functools
import os
import statistics
import time

from t2x.process.allocator import set_allocator

BATCH, PROMPT, HEADS = 16, 32, (8, 4, 2, 1)


def main() -> None:
  """Prints one line per number of heads."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--slots', type=int, default=512, metavar='N', help='length of the cache')
  parser.add_argument('--rounds', type=int, default=5)
  args = parser.parse_args()
  set_allocator()
  import jax
  import numpy as np
  from flax import nnx

  from t2x.decode import generate
  from t2x.layers import MLP, MultiHeadAttention, RoPE, TokenEmbedding
  from t2x.models import Block, Decoder, LanguageModel, Stack

  part = functools.partial
  prompts = np.random.default_rng(0).integers(2, 1024, (BATCH, PROMPT))
  new, lengths = args.slots - PROMPT, np.full(BATCH, PROMPT)

  def build(kv_heads):
    attention = part(MultiHeadAttention, num_heads=8, num_kv_heads=kv_heads)
    block = part(Block, mixer=attention, feed_forward=part(MLP, hidden_dim=2048))
    return LanguageModel(
      d_model=512,
      embedding=part(TokenEmbedding, vocab_size=1024),
      body=part(Decoder, stack=part(Stack, num_layers=4, blocks=[block]), encoding=RoPE),
      rngs=nnx.Rngs(0),
    )

  models = {kv: jax.jit(part(build, kv))() for kv in HEADS}

  def milliseconds(model) -> float:
    start = time.perf_counter()
    output = generate(model, prompts, lengths, max_new_tokens=new, eos_id=None, pad_id=0)
    jax.block_until_ready(output.tokens)
    return 1e3 * (time.perf_counter() - start) / new

  for model in models.values():
    milliseconds(model)  # Compiles it.
  rounds = [{kv: milliseconds(model) for kv, model in models.items()} for _ in range(args.rounds)]
  medians = {kv: statistics.median(times[kv] for times in rounds) for kv in HEADS}
  for kv in HEADS:
    cache = sum(x.nbytes for x in jax.tree.leaves(models[kv].init_cache(BATCH, args.slots)))
    print(
      f'{kv} heads of keys and values: {medians[kv]:.2f} ms per token of {BATCH} rows, speed '
      f'{medians[8] / medians[kv]:.2f}, cache {cache / 2**20:.0f} MiB; load {os.getloadavg()[0]:.1f}',
      flush=True,
    )


if __name__ == '__main__':
  main()
