"""`t2x convert`: model folders in and out, under a limit of memory, and what is refused."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import hub_folders
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tiny_models import llama_shapes

from t2x.base.files import write_checksums
from t2x.interop.safetensors import read_tensors, write_tensors
from t2x.train.checkpoints.retention import METRICS

CONFIGS = Path(__file__).parents[2] / 'configs'

GPT2 = {
  'model_type': 'gpt2',
  'architectures': ['GPT2LMHeadModel'],
  'n_embd': 16,
  'n_head': 2,
  'n_layer': 3,
  'n_positions': 32,
  'vocab_size': 50,
}


def gpt2_shapes(d=16, layers=3, positions=32, vocab=50):
  shapes = {'wte.weight': (vocab, d), 'wpe.weight': (positions, d)}
  for i in range(layers):
    for name, (inputs, outputs) in {
      'attn.c_attn': (d, 3 * d),
      'attn.c_proj': (d, d),
      'mlp.c_fc': (d, 4 * d),
      'mlp.c_proj': (4 * d, d),
    }.items():
      shapes |= {f'h.{i}.{name}.weight': (inputs, outputs), f'h.{i}.{name}.bias': (outputs,)}
    for name in ('ln_1', 'ln_2'):
      shapes |= {f'h.{i}.{name}.weight': (d,), f'h.{i}.{name}.bias': (d,)}
  return shapes | {'ln_f.weight': (d,), 'ln_f.bias': (d,)}


@pytest.fixture
def folder(tmp_path):
  """A tiny GPT-2 as the hub has it: no head, names without prefix."""
  rng = np.random.default_rng(0)
  tensors = {name: rng.normal(size=s).astype(np.float32) for name, s in gpt2_shapes().items()}
  path = tmp_path / 'theirs'
  specs = {name: (value.shape, value.dtype) for name, value in tensors.items()}
  write_tensors(path, specs, tensors.__getitem__)
  (path / 'config.json').write_text(json.dumps(GPT2))
  return path


def test_there_and_back(folder, t2x, tmp_path):
  code, out, err = t2x('convert', 'import', folder, '--out', tmp_path / 'run')
  assert code == 0, err
  assert 'gpt2, 11,184 parameters' in out
  assert t2x('check', tmp_path / 'run' / 'config.gin')[0] == 0
  code, _, err = t2x('convert', 'export', tmp_path / 'run', '--to', tmp_path / 'back')
  assert code == 0, err
  before, after = read_tensors(folder), read_tensors(tmp_path / 'back')
  assert set(after) == {f'transformer.{name}' for name in before}
  for name, value in before.items():
    np.testing.assert_array_equal(after[f'transformer.{name}'], value)
  config = json.loads((tmp_path / 'back' / 'config.json').read_text())
  assert config.items() >= GPT2.items()


@pytest.fixture
def trained(experiment, t2x, tmp_path):
  """`trained(extra)`: the folder of a GPT-2 that was trained here, for a step."""

  def train(extra=''):
    gpt2 = CONFIGS / 'models' / 'gpt2_small.gin'
    sizes = 'LearnedPositions.max_length = 64\nTokenEmbedding.vocab_size = 261\n'
    text = experiment('causal_lm').read_text()
    text = re.sub(r"include '.*small_decoder.gin'", f"include '{gpt2}'", text)
    text = text.replace('vocab_size = 261\n', sizes)
    file = tmp_path / 'gpt2.gin'
    file.write_text(text.replace('num_steps = 12', 'num_steps = 3') + extra)
    code, _, err = t2x('train', file, '--out', tmp_path / 'run')
    assert code == 0, err
    return tmp_path / 'run'

  return train


def test_a_run_that_trained_here_is_exported(trained, t2x, tmp_path):
  trained()
  code, out, err = t2x('convert', 'export', tmp_path / 'run', '--to', tmp_path / 'back')
  assert code == 0, err
  assert 'step 3: gpt2' in out
  assert 'no tokenizer written' in out
  assert json.loads((tmp_path / 'back' / 'config.json').read_text())['n_positions'] == 64


def test_the_error_of_a_model_of_no_family_states_the_differences(trained, t2x, tmp_path):
  trained('MultiHeadAttention.scale = 0.5\n')
  code, _, err = t2x('convert', 'export', tmp_path / 'run', '--to', tmp_path / 'back')
  assert code == 2
  assert 'closest family, gpt2:\n  body.stack.blocks.0.mixer.scale: expected 0.25, got 0.5' in err
  assert not (tmp_path / 'back').exists()
  back = '--to', tmp_path / 'back'
  code, _, err = t2x('convert', 'export', tmp_path / 'run', *back, '--family', 'llama')
  assert code == 2
  assert 'the model cannot be exported as llama: ' in err


@pytest.mark.parametrize(
  ('change', 'parts'),
  [
    ({'model_type': 'mamba'}, ["model_type = 'mamba' is not supported", 'gpt2', 'llama']),
    ({'architectures': ['GPT2ForQuestions']}, ["'GPT2ForQuestions'", "'GPT2LMHeadModel'"]),
    ({'activation_function': 'sine'}, ['activation_function', "'sine'"]),
    ({'n_layer': 4}, ['12 tensors are missing', 'transformer.h.3.']),
    ({'n_layer': 2}, ['12 tensors are unknown', 'transformer.h.2.']),
    ({'n_positions': 64}, ['wpe.weight', '(32, 16)', '(64, 16)']),
  ],
)
def test_unsuitable_files_are_errors(folder, t2x, tmp_path, change, parts):
  (folder / 'config.json').write_text(json.dumps(GPT2 | change))
  code, _, err = t2x('convert', 'import', folder, '--out', tmp_path / 'run')
  assert code == 2
  assert 'Traceback' not in err
  for part in parts:
    assert part in err
  assert not (tmp_path / 'run').exists()


def test_a_pickle_is_refused_and_why(folder, t2x, tmp_path):
  (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
  for model in (folder, folder / 'pytorch_model.bin'):
    code, _, err = t2x('convert', 'import', model, '--out', tmp_path / 'run')
    assert code == 2
    assert 'pytorch_model.bin is not a safetensors file, and pickle files are not opened' in err


def test_existing_files_are_not_overwritten(folder, t2x, tmp_path):
  assert t2x('convert', 'import', folder, '--out', tmp_path / 'run')[0] == 0
  code, _, err = t2x('convert', 'import', folder, '--out', tmp_path / 'run')
  assert code == 2
  assert 'already exists' in err


@pytest.mark.nightly
def test_a_model_larger_than_memory_is_imported(tmp_path):
  """2.2 GB of parameters, as a file with holes, in a process that may hold 1 GB."""
  vocab, d, hidden, layers = 32000, 1024, 2816, 38
  config = {'model_type': 'llama', 'architectures': ['LlamaForCausalLM'], 'hidden_size': d}
  config |= {'intermediate_size': hidden, 'num_hidden_layers': layers, 'num_attention_heads': 16}
  shapes = llama_shapes(d, hidden, layers, vocab)
  tmp_path.joinpath('config.json').write_text(json.dumps(config | {'vocab_size': vocab}))
  write_holes(tmp_path / 'model.safetensors', shapes)
  limit = 1 << 30
  limited = ['bash', '-c', f'ulimit -d {limit >> 10} && exec "$@"', '-']
  command = ['convert', 'import', tmp_path, '--out', tmp_path / 'run']
  done = subprocess.run(
    [*limited, sys.executable, '-m', 't2x', *map(str, command)],
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  parameters = sum(int(np.prod(shape)) for shape in shapes.values())
  assert f'{parameters:,} parameters' in done.stdout
  assert 4 * parameters > 2 * limit


def write_holes(path, shapes):
  header, end = {}, 0
  for name, shape in shapes.items():
    start, end = end, end + int(np.prod(shape)) * np.dtype(ml_dtypes.bfloat16).itemsize
    header[name] = {'dtype': 'BF16', 'shape': shape, 'data_offsets': [start, end]}
  text = json.dumps(header).encode()
  with path.open('wb') as file:
    file.write(len(text).to_bytes(8, 'little') + text)
    file.truncate(8 + len(text) + end)


@pytest.mark.parametrize('file', ['generation_config.json', 'config.json'])
def test_several_end_tokens_are_kept_from_import_to_export(file, t2x, tmp_path):
  folder, ends = hub_folders.make(tmp_path / 'theirs', 'gpt2'), list(range(1, 500, 3))
  rng = np.random.default_rng(0)
  tensors = {name: rng.normal(size=s).astype(np.float32) for name, s in llama_shapes().items()}
  write_tensors(folder, {n: (t.shape, t.dtype) for n, t in tensors.items()}, tensors.__getitem__)
  config = {'model_type': 'llama', 'architectures': ['LlamaForCausalLM'], 'hidden_size': 16}
  config |= {'intermediate_size': 24, 'num_hidden_layers': 1, 'num_attention_heads': 2}
  (folder / 'config.json').write_text(json.dumps(config | {'vocab_size': 500}))
  told = json.loads((folder / file).read_text()) if file == 'config.json' else {}
  (folder / file).write_text(json.dumps(told | {'eos_token_id': ends}))

  code, _, err = t2x('convert', 'import', folder, '--out', tmp_path / 'run')
  assert code == 0, err
  words = ['generate', tmp_path / 'run', '--json', '--max-new-tokens', 30]
  words += [word for prompt in ('def', 'x = 1', 'the') for word in ('--prompt', prompt)]
  for flags in ([], ['--beam', 2], ['--temperature', 1.0]):
    code, out, err = t2x(*words, *flags)
    assert code == 0, err
    for line in out.splitlines():
      *tokens, last = json.loads(line)['tokens']
      assert last in ends
      assert not set(tokens) & set(ends)
  code, _, err = t2x('convert', 'export', tmp_path / 'run', '--to', tmp_path / 'back')
  assert code == 0, err
  assert json.loads((tmp_path / 'back' / file).read_text())['eos_token_id'] == ends


def as_format_1(checkpoint):
  """Rewrites a checkpoint as older versions wrote it: nested dicts, parameters under `model`."""
  reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
  args = ocp.args.Composite(state=ocp.args.StandardRestore(), about=ocp.args.JsonRestore())
  saved = reader.restore(checkpoint, args=args)
  rename = lambda name: re.sub('^params', 'model', name).replace('.', '/')  # noqa: E731
  state = {}
  for name, leaf in saved.state.items():
    *parts, last = rename(name).split('/')
    inner = state
    for part in parts:
      inner = inner.setdefault(part, {})
    inner[last] = leaf
  about = {name: value for name, value in saved.about.items() if name != 'format'}
  about['arrays'] = {rename(name): shape for name, shape in about['arrays'].items()}
  metrics = (checkpoint / METRICS).read_bytes() if (checkpoint / METRICS).exists() else None
  shutil.rmtree(checkpoint)
  with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as writer:
    args = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about))
    writer.save(checkpoint, args=args)
  write_checksums(checkpoint)
  if metrics is not None:
    (checkpoint / METRICS).parent.mkdir()
    (checkpoint / METRICS).write_bytes(metrics)


@pytest.mark.nightly
def test_a_run_of_an_older_version_is_refused_and_resumed_after_conversion(
  experiment, t2x, tmp_path
):
  file = experiment('causal_lm', 'Trainer.ema_decay = 0.9\n')
  old, new, whole = (tmp_path / name for name in ('old', 'new', 'whole'))
  short = '--gin.Trainer.num_steps=6'
  assert t2x('train', file, '--out', old, short)[0] == 0
  before = t2x('eval', old, '--json')
  for checkpoint in (old / 'checkpoints').glob('[0-9]*'):
    as_format_1(checkpoint)
  code, _, err = t2x('eval', old)
  assert code == 2
  assert 'has run format 1, this t2x reads 2: convert it with `t2x convert run' in err
  assert t2x('convert', 'run', old, '--to', new)[0] == 0
  assert t2x('eval', new, '--json') == before
  assert t2x('train', file, '--out', new, short)[0] == 0
  code, _, err = t2x('convert', 'run', new, '--to', whole)
  assert code == 2
  assert 'only 1 can be converted' in err
