"""Runs of several real processes on this machine; each has a limit of time."""

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 150

TRAINER = """
d_model = 16
num_layers = 1
MLP.hidden_dim = 32
MultiHeadAttention.num_heads = 2
vocab_size = 264
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 6
  batch_size = 8
  log_every = 2
  eval_every = 3
  checkpoint_every = 3
  schedule = @Constant()
Constant.peak = 3e-3
"""

CONFIGS = {
  'causal_lm': """
include '{root}/configs/models/small_decoder.gin'
Experiment.task = @CausalLM()
CausalLM:
  source = @TextFiles()
  tokenizer = @Bytes()
  length = 32
Experiment.evaluations = {{'samples': @Samples()}}
Samples:
  prompts = ['the ', 'a cat']
  num_tokens = 4
TextFiles:
  train = '{data}/train.txt'
  validation = '{data}/validation.txt'
""",
  'translation': """
include '{root}/configs/models/small_encoder_decoder.gin'
Experiment.task = @Translation()
Translation:
  source = @TSV()
  tokenizer = @Bytes()
  source_length = 32
  target_length = 32
  strategy = @Beam()
Experiment.evaluations = {{'translations': @Translations()}}
Translations:
  num_examples = 4
  batch_size = 4
Beam.width = 2
TSV:
  train = '{data}/train.tsv'
  validation = '{data}/validation.tsv'
""",
}


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with made-up data, in which a cache will be."""
  folder = tmp_path_factory.mktemp('processes')
  words = random.Random(0)
  vocabulary = ['the', 'a', 'cat', 'dog', 'sees', 'likes', 'red', 'blue', 'house', 'tree']
  for split, count in (('train', 60), ('validation', 21)):
    lines = [' '.join(words.choices(vocabulary, k=words.randint(2, 5))) for _ in range(count)]
    (folder / f'{split}.txt').write_text('\n'.join(lines))
    pairs = ''.join(f'{line[:28]}\t{line[:28].upper()}\n' for line in lines)
    (folder / f'{split}.tsv').write_text(pairs)
  return folder


@pytest.fixture(scope='module')
def config(place):
  """`config(name, extra) -> path` of a tiny experiment."""

  def write(name: str, extra: str = '') -> Path:
    path = place / f'{name}.gin'
    path.write_text(CONFIGS[name].format(root=ROOT, data=place) + TRAINER)
    if extra:
      # What another file has bound may be bound again.
      text, path = f"include '{path}'\n{extra}", place / f'{name}-{abs(hash(extra))}.gin'
      path.write_text(text)
    return path

  return write


@pytest.fixture(scope='module')
def environment(place):
  """`environment(devices)` is that of a process on so many fake devices."""

  def of(devices: int) -> dict[str, str]:
    # XLA's threads: a collective of several devices can wait for ever on two.
    known = {'JAX_NUM_CPU_DEVICES': str(devices), 'NPROC': '16'}
    return os.environ | known | {'T2X_CACHE': str(place / 'cache')}

  return of


@pytest.fixture(scope='module')
def t2x(environment):
  """`t2x(*args, processes=1, devices=1)` runs to the end; several through t2x.launch.processes."""

  def run(*args: object, processes: int = 1, devices: int = 1) -> subprocess.CompletedProcess:
    launch = [sys.executable, '-m', 't2x.launch.processes', '-n', str(processes), '--']
    command = [sys.executable, '-m', 't2x', *map(str, args)]
    return subprocess.run(
      [*(launch if processes > 1 else []), *command],
      env=environment(devices),
      capture_output=True,
      text=True,
      timeout=LIMIT,
      check=False,
    )

  return run


@pytest.fixture
def start(environment):
  """`start(*args, count=2, only=None)` gives the running processes of one run, by index."""
  started: list[subprocess.Popen] = []

  def run(*args: object, count: int = 2, only: int | None = None) -> dict[int, subprocess.Popen]:
    with socket.socket() as one:
      one.bind(('', 0))
      port = one.getsockname()[1]
    running = {}
    for index in range(count) if only is None else [only]:
      told = ['--coordinator', f'localhost:{port}', '--num_processes', str(count)]
      told += ['--process_id', str(index)]
      running[index] = subprocess.Popen(
        [sys.executable, '-m', 't2x', *map(str, args), *told],
        env=environment(1),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    started.extend(running.values())
    return running

  yield run
  for process in started:
    process.kill()
    process.communicate()
