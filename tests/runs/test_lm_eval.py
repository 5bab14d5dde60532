"""lm-evaluation-harness on a run, against t2x's own evaluation and a direct computation, on local data only."""

import json
import math
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import t2x
from t2x.decode import Greedy

ROOT = Path(__file__).parents[2]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{validation: '{data}'}}}}
validation_split: validation
output_type: {kind}
doc_to_text: {question}
doc_to_target: {answer}
{more}
"""
CONFIG = """
include '{root}/configs/models/small_decoder.gin'
d_model = 32
num_layers = 2
vocab_size = 261
MLP.hidden_dim = 64
MultiHeadAttention.num_heads = 2
Experiment.task = @CausalLM()
CausalLM:
  source = @JsonLines()
  tokenizer = @Bytes()
  length = 128
JsonLines:
  train = '{data}'
  validation = '{data}'
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 40
  batch_size = 8
  eval_every = 40
  schedule = @Cosine()
Cosine.peak = 1e-2
"""


@pytest.fixture(scope='module')
def python(tmp_path_factory):
  """The interpreter of an environment that adds lm-eval to the packages of this one."""
  venv = tmp_path_factory.mktemp('venv')
  subprocess.run([sys.executable, '-m', 'venv', venv], check=True)
  [site] = venv.glob('lib/*/site-packages')
  here = next(path for path in sys.path if path.endswith('site-packages'))
  (site / 'of_this_one.pth').write_text(here)
  interpreter = venv / 'bin' / 'python'
  subprocess.run([interpreter, '-m', 'pip', 'install', '-q', 'lm-eval>=0.4.13,<0.5'], check=True)
  yield interpreter
  shutil.rmtree(venv)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run, and its folder of texts and tasks."""
  folder = tmp_path_factory.mktemp('harness')
  texts = [f'{a}{b} = {b}{a}\n' for a in 'abcdefgh' for b in 'abcdefgh']
  rows = [
    {
      'text': t.rstrip(),
      'prompt': t[:5],
      'answer': t[5:7],
      'choices': [t[5:7], t[:2][::-1] + 'x', 'zz'],
    }
    for t in texts
  ]
  data = folder / 'data.jsonl'
  data.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  (folder / 'config.gin').write_text(CONFIG.format(root=ROOT, data=data))
  command = ['train', folder / 'config.gin', '--out', folder / 'run']
  subprocess.run([sys.executable, '-m', 't2x', *command], check=True, cwd=ROOT)
  tasks = folder / 'tasks'
  tasks.mkdir()
  scored = (
    'metric_list: [{metric: exact_match}]\ngeneration_kwargs: {until: ["\\n"], max_gen_toks: 8}'
  )
  for name, kind, question, answer, more in (
    (
      'own_text',
      'loglikelihood_rolling',
      '""',
      '"{{text}}"',
      'metric_list: [{metric: bits_per_byte}]',
    ),
    ('own_answers', 'generate_until', '"{{prompt}}"', '"{{answer}}"', scored),
    (
      'own_choices',
      'multiple_choice',
      '"{{prompt}}"',
      '0',
      'doc_to_choice: "{{choices}}"\ntarget_delimiter: ""',
    ),
  ):
    text = TASK.format(name=name, kind=kind, question=question, answer=answer, more=more, data=data)
    (tasks / f'{name}.yaml').write_text(textwrap.dedent(text))
  return folder


@pytest.mark.nightly
def test_numbers_equal_t2x_eval_and_a_direct_computation(run, python):
  arguments = [
    '--model',
    't2x',
    '--model_args',
    f'run={run}/run,score_end=True',
    '--batch_size',
    '16',
  ]
  arguments += ['--tasks', 'own_text,own_answers,own_choices', '--include_path', run / 'tasks']
  arguments += ['--output_path', run / 'out', '--log_samples']
  subprocess.run(
    [python, '-m', 't2x.runs.lm_eval', 'run', *arguments],
    check=True,
    cwd=ROOT,
    env=os.environ
    | {'HF_HUB_OFFLINE': '1', 'HF_DATASETS_OFFLINE': '1', 'HF_HOME': str(run / 'hf')},
  )
  [path] = run.glob('out/**/results_*.json')
  results = json.loads(path.read_text())['results']
  loaded = t2x.load(run / 'run')
  metrics, _ = loaded.evaluate('validation')
  assert results['own_text']['bits_per_byte,none'] == pytest.approx(
    metrics['bits_per_byte'], rel=1e-5
  )
  rows = list(map(json.loads, (run / 'data.jsonl').read_text().splitlines()))
  nats = -sum(_log_prob(loaded, '', row['text'], end=True) for row in rows)
  bits = nats / math.log(2) / sum(len(row['text'].encode()) for row in rows)
  assert results['own_text']['bits_per_byte,none'] == pytest.approx(bits, rel=1e-5)
  chosen = [
    np.argmax([_log_prob(loaded, row['prompt'], choice) for choice in row['choices']])
    for row in rows
  ]
  assert results['own_choices']['acc,none'] == pytest.approx(np.mean(np.array(chosen) == 0))
  questions = [row['prompt'] for row in rows]
  outputs = loaded.generate(questions, strategy=Greedy(), max_new_tokens=8)
  texts = [output['text'].partition('\n')[0] for output in outputs]
  [samples] = run.glob('out/**/samples_own_answers_*.jsonl')
  answered = {
    sample['doc_id']: sample['resps'][0][0]
    for sample in map(json.loads, samples.read_text().splitlines())
  }
  assert [answered[i] for i in range(len(rows))] == texts


def _log_prob(loaded, prompt, continuation, end=False):
  """The log-probability of a continuation, from the logits of single rows."""
  tokenizer = loaded.tokenizer
  before = [tokenizer.bos_id, *tokenizer.encode(prompt)]
  ids = tokenizer.encode(continuation) + [tokenizer.eos_id] * end
  logits = loaded.logits(np.array([[*before, *ids[:-1]]], np.int32))[0].astype(np.float64)
  logits = logits[len(before) - 1 :]
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return log_probs[np.arange(len(ids)), ids].sum()
