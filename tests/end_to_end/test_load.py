"""`t2x.load` opens a run: generation, logits, hidden vectors, attention and evaluation without a trainer."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pandas
import pytest

import t2x as library
from t2x.base.errors import UserError


@pytest.fixture(scope='module')
def ended(tmp_path_factory):
  """Where the run is kept for all tests of this file."""
  return tmp_path_factory.mktemp('ended') / 'run'


@pytest.fixture
def folder(ended, experiment, t2x):
  """A run that has ended."""
  if not ended.exists():
    code, _, err = t2x('train', experiment('causal_lm'), '--out', ended)
    assert code == 0, err
  return ended


@pytest.fixture
def run(folder):
  return library.load(folder)


def test_texts_are_read_as_in_training(run):
  texts = ['the cat', 'a']
  logits = run.logits(texts)
  ids, segments = run.encode(texts)
  assert logits.shape == (*ids.shape, run.model.model.spec.vocab_size)
  assert segments.sum(axis=1).tolist() == [8, 2]  # Each begins with a special token.
  # Padding changes nothing, and the model is causal.
  alone = run.logits('a')
  np.testing.assert_allclose(logits[1, :2], alone[0], atol=2e-6)
  hidden, attention = run.hidden(texts), run.attention(texts)
  assert len(hidden) == len(attention) == 2
  assert {x.shape[:2] for x in hidden} == {ids.shape}
  for layer in attention:
    np.testing.assert_allclose(layer[0].sum(axis=-1), 1.0, atol=1e-6)
    assert not np.triu(layer[0, 0], 1).any()


def test_generation_and_evaluation_match_the_commands(run, folder, t2x):
  code, out, _ = t2x('generate', folder, '--prompt', 'the cat', '--greedy', '--json')
  assert code == 0
  answer = json.loads(out)
  from t2x.decode import Greedy

  (mine,) = run.generate('the cat', strategy=Greedy())
  assert mine['text'] == answer['text'] and mine['tokens'] == answer['tokens']
  code, out, _ = t2x('eval', folder, '--json')
  metrics, samples = run.evaluate()
  assert json.loads(out)['loss'] == pytest.approx(metrics['loss'])
  assert {sample['evaluation'] for sample in samples} == {'samples'}


def test_generation_and_evaluators_compute_in_the_dtype_of_the_run(run, folder, t2x, tmp_path):
  """A copy of the run says bfloat16; on the command line float32 overrides it."""
  shutil.copytree(folder, tmp_path / 'run')
  config = tmp_path / 'run' / 'config.gin'
  config.write_text(config.read_text() + "\nTrainer.compute_dtype = 'bfloat16'\n")
  rounded = library.load(tmp_path / 'run')
  kernel = 'head.out.kernel' if 'head.out.kernel' in rounded.params else 'embedding.table'
  np.testing.assert_array_equal(rounded.params[kernel], run.params[kernel])
  evaluated = rounded.inference._evaluated('samples', rounded.params, iter)
  for model in (rounded.model, evaluated.model()):
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(model)}
    assert dtypes == {'bfloat16', 'float32'}  # Norms keep float32.
  assert {leaf.dtype.name for leaf in jax.tree.leaves(run.model)} == {'float32'}

  def log_probs(*arguments):
    code, out, err = t2x('generate', *arguments, '--prompt', 'the cat', '--greedy', '--json')
    assert code == 0, err
    return json.loads(out)['log_probs']

  exact = log_probs(folder)
  assert log_probs(tmp_path / 'run') != exact
  assert log_probs(tmp_path / 'run', '--gin.Trainer.compute_dtype=float32') == exact
  assert rounded.evaluate()[0]['loss'] == pytest.approx(run.evaluate()[0]['loss'], rel=0.02)


def without(text, *names):
  """A resolved config without the bindings of some parts and of Experiment's fields that hold them."""
  for name in names:
    text = re.sub(rf'(?m)^{name}:\n((  .*)?\n)*', '', text)
    text = re.sub(rf'(?m)^.* = @{name}\(\)\n', '', text)
  return text


def test_a_config_needs_no_trainer_and_no_source_to_generate(folder, t2x, tmp_path):
  text = without((folder / 'config.gin').read_text(), 'Trainer', 'Constant', 'Cosine')
  for name in ('checkpoints', 'tokenizer'):
    (tmp_path / name).symlink_to(folder / name)
  (tmp_path / 'config.gin').write_text(text)
  code, out, err = t2x('eval', tmp_path, '--json', '--batch-size', 3)
  assert code == 0, err
  expected = json.loads(t2x('eval', folder, '--json')[1])
  assert json.loads(out)['loss'] == pytest.approx(expected['loss'], rel=1e-6)
  bare = without(text, 'TextFiles', 'Bytes')
  bare = re.sub(r'\n  (source|tokenizer) = @.*', '', bare)
  (tmp_path / 'config.gin').write_text(bare)
  code, out, err = t2x('generate', tmp_path, '--prompt', 'the cat', '--greedy', '--json')
  assert code == 0, err
  wanted = t2x('generate', folder, '--prompt', 'the cat', '--greedy', '--json')[1]
  assert json.loads(out) == json.loads(wanted)
  code, _, err = t2x('eval', tmp_path)
  assert code == 2 and 'CausalLM.source is not set' in err


def test_overrides_cannot_change_the_mup_of_a_run(folder, tmp_path):
  """Without muP, or with another base, the same parameters would give other logits."""
  other = shutil.copytree(folder, tmp_path / 'run')
  mup = ['Experiment.mup=@MuP()', 'MuP.base=@LanguageModel']
  with pytest.raises(UserError, match=r'Experiment\.mup = .* in .*, which overrides cannot change'):
    library.load(folder, overrides=mup)
  with (other / 'config.gin').open('a') as file:
    file.write('\n'.join(binding.replace('=', ' = ', 1) for binding in mup) + '\n')
  expected = library.load(other).logits('a')
  for change in ('Experiment.mup=None', 'base/Stack.num_layers=1'):
    base = ['MuP.base=@base/LanguageModel'] if 'base' in change else []
    with pytest.raises(UserError, match='which overrides cannot change'):
      library.load(other, overrides=[change, *base])
  np.testing.assert_array_equal(library.load(folder).logits('a'), expected)


def test_an_empty_folder_is_refused(tmp_path):
  with pytest.raises(UserError, match=r'neither a run folder .* nor a model folder'):
    library.load(tmp_path)


def test_a_run_is_shown_in_two_lines_with_its_history(run, folder):
  text = repr(run)
  size = sum(array.size for array in run.params.values())
  assert (
    text.count('\n') == 1 and f'{folder}: CausalLM, {size:,} parameters, step {run.step}' in text
  )
  for name in text.splitlines()[1].replace(';', ',').split(', '):
    assert hasattr(type(run), name) or hasattr(run, name), name
  lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
  assert run.history() == lines
  table = pandas.DataFrame(run.history())
  assert {'step', 'split', 'loss'} <= {*table.columns} and len(table) == len(lines)
  with pytest.raises(UserError, match=r'no metrics\.jsonl: load a run folder'):
    dataclasses.replace(run, folder=None).history()
