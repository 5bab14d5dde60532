"""Milliseconds per generation of 128 tokens after a prompt of 32: t2x against transformers' generate with its cache.

python experiments/speed/generate.py --rounds 7 --out experiments/speed/results/generate.csv

A GPT-2 of width 256 with 6 layers and 8,192 tokens, random weights that transformers initialises and t2x imports,
greedy and beam search of width 4. Both must generate the same tokens. Needs the extra `references`, and `report`
for the plot.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rows import show
from workers import Worker, compare, serve

PROMPT, NEW = 32, 128
CASES = {'batch 1': (1, 1), 'batch 8': (8, 1), 'batch 8, beam 4': (8, 4)}


def save_model(folder: str) -> None:
  """Writes a GPT-2 with random weights as a Hugging Face folder."""
  import torch
  import transformers

  torch.manual_seed(0)
  config = transformers.GPT2Config(
    vocab_size=8192,
    n_positions=256,
    n_embd=256,
    n_layer=6,
    n_head=4,
    bos_token_id=0,
    eos_token_id=1,
  )
  transformers.GPT2LMHeadModel(config).save_pretrained(folder)


def prompts(batch: int):
  """Returns random prompts, int64 [batch, 32]."""
  import numpy as np

  return np.random.default_rng(0).integers(2, 8192, (batch, PROMPT))


def t2x_generation(folder: str, batch: int, beams: int) -> Callable:
  """Returns a function that generates and returns token ids [batch, 128]."""
  from t2x.process.allocator import set_allocator

  set_allocator()
  import numpy as np

  import t2x
  from t2x.decode import Beam, Greedy, generate

  model = t2x.load(folder).model
  ids, lengths = prompts(batch), np.full(batch, PROMPT)
  strategy = Greedy() if beams == 1 else Beam(width=beams)

  def run():
    out = generate(
      model, ids, lengths, strategy=strategy, max_new_tokens=NEW, eos_id=None, pad_id=0
    )
    return np.asarray(out.tokens)

  return run


def torch_generation(folder: str, batch: int, beams: int) -> Callable:
  """As `t2x_generation`."""
  import torch
  import transformers

  model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
  ids = torch.from_numpy(prompts(batch))

  def run():
    with torch.inference_mode():
      out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=beams,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        eos_token_id=None,
        pad_token_id=0,
      )
    return out[:, PROMPT:].numpy()

  return run


def work(contender: str, folder: str, case: str) -> None:
  """Serves generations of one contender."""
  builder = t2x_generation if contender == 't2x' else torch_generation
  run = builder(folder, *CASES[case])

  def take(times: int) -> None:
    for _ in range(times):
      run()

  serve(take, tokens=run().reshape(-1).tolist())


def measure(case: str, folder: str, rounds: int) -> list[dict]:
  """Returns a row for each contender."""
  workers = {
    name: Worker([__file__, '--work', name, folder, case]) for name in ('t2x', 'transformers')
  }
  tokens = [worker.ready['tokens'] for worker in workers.values()]
  same = sum(a == b for a, b in zip(*tokens, strict=True)) / len(tokens[0])
  return [
    {'case': case, 'contender': name, **row, 'equal_tokens': round(same, 3)}
    for name, row in compare(workers, rounds).items()
  ]


def main() -> None:
  """Prints and writes a row for each case and contender."""
  if sys.argv[1:2] == ['--work']:
    return work(*sys.argv[2:5])
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--cases', nargs='+', default=list(CASES), choices=CASES)
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument(
    '--out', type=Path, metavar='FILE', help='CSV file to write, with a plot beside it'
  )
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    save_model(folder)
    show(
      (row for case in args.cases for row in measure(case, folder, args.rounds)),
      args.out,
      case=('case',),
    )
  return None


if __name__ == '__main__':
  main()
