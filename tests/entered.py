"""Lists the files of t2x that a train step or an attention call enters, or the modules that training loads.

python -m tests.entered step        # of configs/runs/quickstart.gin with the tokenizer of bytes
python -m tests.entered attention
python -m tests.entered loaded

A step opens the stored tokens, builds the model and its state, takes a batch and traces the train step.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / 'configs' / 'runs' / 'quickstart.gin'
# The tokenizer of bytes needs no training.
OVERRIDES = ['CausalLM.tokenizer=@Bytes()', 'TokenEmbedding.vocab_size=261']


@contextlib.contextmanager
def entered() -> Iterator[set[str]]:
  """Context that adds the files of t2x, whose functions Python calls in it, to a set."""
  files: set[str] = set()
  start = f'{ROOT / "t2x"}{os.sep}'

  def profile(frame: Any, event: str, argument: Any) -> None:
    file = frame.f_code.co_filename
    # Bodies of modules and classes are no functions.
    if event == 'call' and file.startswith(start) and frame.f_code.co_flags & 2:
      files.add(file.removeprefix(start))

  sys.setprofile(profile)
  try:
    yield files
  finally:
    sys.setprofile(None)


def step() -> set[str]:
  """Returns the files that a train step of the plain GPT enters."""
  import jax

  from t2x.experiments import read_experiment
  from t2x.train.program import Program

  experiment = read_experiment([CONFIG], OVERRIDES)
  assert experiment.task is not None
  task = experiment.task.bound(experiment.task.fit_tokenizer())
  task.rows('train')  # Encodes the texts and stores the tokens.
  with entered() as files:
    batches = task.batches(task.rows('train'), batch_size=8, seed=0)
    program = Program(experiment)
    state = program.abstract, program.frozen
    jax.eval_shape(program.step(), *state, batches[0], program.scalars)
  return files


def attention() -> set[str]:
  """Returns the files that one call of MultiHeadAttention with its defaults enters."""
  import jax.numpy as jnp
  from flax import nnx

  from t2x.layers import Call, Causal, MultiHeadAttention, Tokens

  part, call = MultiHeadAttention(32, num_heads=4, rngs=nnx.Rngs(0)), Call(Tokens.row(8), Causal())
  with entered() as files:
    part(jnp.ones((2, 8, 32)), call)
  return files


def loaded() -> set[str]:
  """Returns the modules of t2x that `t2x train` of the quickstart loads."""
  from t2x.cli import main

  overrides = [
    *OVERRIDES,
    'CausalLM.source=@Part()',
    'Part.source=@StandardLibrary()',
    "Part.examples={'train': 30, 'validation': 2}",
    'Trainer.num_steps=1',
    'Trainer.eval_every=0',
    'Cosine.warmup=0.0',
    'Samples.num_tokens=1',
  ]
  with tempfile.TemporaryDirectory() as folder:
    code = main(
      ['train', str(CONFIG), '--out', folder, '--quiet', *(f'--gin.{o}' for o in overrides)]
    )
  assert code == 0
  return {name for name in sys.modules if name.partition('.')[0] == 't2x'}


if __name__ == '__main__':
  if sys.argv[1:] not in (['step'], ['attention'], ['loaded']):
    sys.exit(__doc__)
  # The result does not depend on earlier runs.
  with tempfile.TemporaryDirectory() as cache:
    os.environ['T2X_CACHE'] = cache
    found = {'step': step, 'attention': attention, 'loaded': loaded}[sys.argv[1]]()
  print('\n'.join(sorted(found)))
