"""Measures milliseconds per generated token for several numbers of cache slots, and the compilation time.

python experiments/speed/decode.py

Greedy decoding by a decoder of width 256 with 6 layers, with a batch of 8 prompts of 32 tokens. To compare
two commits, run it at each in turn; it also prints the load of the machine.
"""

import argparse
import functools
import os
import time

from t2x.process.allocator import set_allocator


def main() -> None:
  """Prints one line per number of slots."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--slots', type=int, nargs='+', default=[96, 256, 448], metavar='N')
  parser.add_argument('--layers', type=int, default=6)
  parser.add_argument('--repeat', type=int, default=5, help='repetitions; reports the fastest')
  args = parser.parse_args()
  set_allocator()
  import jax
  import numpy as np
  from flax import nnx

  from t2x.decode import generate
  from t2x.layers import MLP, MultiHeadAttention, RoPE, TokenEmbedding
  from t2x.models import Block, Decoder, LanguageModel, Stack

  part = functools.partial
  attention, mlp = part(MultiHeadAttention, num_heads=4), part(MLP, hidden_dim=1024)
  stack = part(
    Stack, num_layers=args.layers, blocks=[part(Block, mixer=attention, feed_forward=mlp)]
  )

  @jax.jit
  def build():
    return LanguageModel(
      d_model=256,
      embedding=part(TokenEmbedding, vocab_size=1024),
      body=part(Decoder, stack=stack, encoding=RoPE),
      rngs=nnx.Rngs(0),
    )

  model = build()
  prompts, lengths = np.random.default_rng(0).integers(2, 1024, (8, 32)), np.full(8, 32)
  for slots in args.slots:
    new = slots - 32

    def seconds(new=new) -> float:
      start = time.perf_counter()
      output = generate(model, prompts, lengths, max_new_tokens=new, eos_id=None, pad_id=0)
      jax.block_until_ready(output.tokens)
      return time.perf_counter() - start

    first = seconds()
    fastest = min(seconds() for _ in range(args.repeat))
    print(
      f'{slots} slots: {1e3 * fastest / new:.2f} ms per token; first call including compilation '
      f'{first:.1f} s; load {os.getloadavg()[0]:.1f}',
      flush=True,
    )


if __name__ == '__main__':
  main()
