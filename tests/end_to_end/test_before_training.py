"""What an evaluation could not use is refused before the first step, in one line and with exit code 2."""

import json
import sys

import pytest

LEARNED = 'Decoder.encoding = @LearnedPositions\nLearnedPositions.max_length = 64\n'
FURTHER = "Experiment.evaluations = {'far': @Losses()}\nLosses.split = 'test'\n"
CASES = {
  'no evaluation split': (
    'causal_lm',
    'TextFiles.validation = None\n',
    "no split 'validation' in",
    'set CausalLM.eval_split',
  ),
  'a split of another name': ('causal_lm', "CausalLM.eval_split = 'dev'\n", "no split 'dev' in"),
  'no file': (
    'causal_lm',
    "TextFiles.validation = '/nowhere/*.txt'\n",
    "TextFiles.validation = '/nowhere/*.txt' matches no file",
  ),
  'no tokens': (
    'causal_lm',
    'Samples.num_tokens = 0\n',
    'Samples.num_tokens must be at least 1',
  ),
  'no batches': (
    'causal_lm',
    'Trainer.eval_batches = 0\n',
    'Trainer.eval_batches must be at least 1',
  ),
  'a negative interval': (
    'causal_lm',
    'Trainer.eval_every = -1\n',
    'Trainer.eval_every must be at least 0',
  ),
  'a negative number of examples': (
    'translation',
    'Translations.num_examples = -1\n',
    'Translations.num_examples must be at least 1',
  ),
  'sentences in no batches': (
    'translation',
    'Translations.batch_size = 0\n',
    'Translations.batch_size must be at least 1',
  ),
  'continuations beyond the positions': (
    'causal_lm',
    LEARNED + 'Samples.num_tokens = 64\n',
    "Experiment.evaluations['samples']: ",
    'require 68 positions, the model has 64',
  ),
  'a further evaluation without its split': (
    'causal_lm',
    FURTHER,
    "Experiment.evaluations['far']: no split 'test' in",
  ),
  'more labels than classes': (
    'image_classification',
    'ImageClassification.num_classes = 7\nClassifier.num_classes = 7\n',
    'has the label 7: labels must be integers from 0 to 6',
  ),
  'images of another shape': (
    'image_classification',
    'ImageClassification.image_shape = (16, 16, 1)\n',
    "'image' is float32[8, 8, 8, 1], but ImageClassification expects float32[8, 16, 16, 1]",
  ),
}


@pytest.mark.parametrize('name', CASES)
def test_it_is_refused_before_the_first_step(name, experiment, t2x, tmp_path):
  task, settings, *told = CASES[name]
  code, _, err = t2x('train', experiment(task, settings), '--out', tmp_path / 'run')
  assert code == 2, err
  for part in told:
    assert part in err.splitlines()[-1]
  assert not (tmp_path / 'run' / 'metrics.jsonl').exists()
  assert not (tmp_path / 'run' / 'checkpoints').exists()


def test_an_evaluation_split_whose_examples_are_all_too_long(experiment, t2x, tmp_path):
  (tmp_path / 'long.tsv').write_text('long ' * 20 + '\tlang\n')
  file = experiment('translation', f"TSV.validation = '{tmp_path}/long.tsv'\n")
  code, _, err = t2x('train', file, '--out', tmp_path / 'run')
  assert code == 2
  assert 'is empty: all of its 1 examples are longer than a row' in err.splitlines()[-1]
  assert not (tmp_path / 'run' / 'metrics.jsonl').exists()


def test_a_label_that_only_the_evaluation_split_has(experiment, t2x, tmp_path):
  (tmp_path / 'odd.jsonl').write_text(json.dumps({'text': 'cat', 'label': 'middling'}) + '\n')
  file = experiment('sequence_classification', f"JsonLines.validation = '{tmp_path}/odd.jsonl'\n")
  code, _, err = t2x('train', file, '--out', tmp_path / 'run')
  assert code == 2
  assert "example 0 has the label 'middling'" in err.splitlines()[-1]
  assert not (tmp_path / 'run' / 'metrics.jsonl').exists()


@pytest.fixture
def without_packages(monkeypatch):
  """Packages of three extras are not installed."""
  hidden = ('tokenizers', 'sklearn', 'wandb')
  for name in [*sys.modules, *hidden]:
    if name.partition('.')[0] in hidden:
      monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures('without_packages')
def test_all_missing_packages_are_named_before_the_start(t2x, tmp_path):
  config = ['vit_digits', '--gin.Trainer.writers=[@WandB]']
  names = "sklearn (Digits), wandb (WandB): pip install 't2x[samples,trackers]'"
  for command in (['check'], ['train', '--out', tmp_path / 'run']):
    assert t2x(*command, *config) == (2, '', f't2x: packages are not installed: {names}\n')
  assert not (tmp_path / 'run').exists()
  assert t2x('show', *config)[0] == 0


@pytest.mark.usefixtures('without_packages')
@pytest.mark.parametrize('command', [['check'], ['sweep', '--dry-run']])
def test_a_sweep_names_the_missing_packages_of_all_variants(command, t2x, tmp_path):
  (tmp_path / 'sweep.gin').write_text("""Sweep:
  base = 't2x:runs/quickstart.gin'
  baseline = 'bytes'
  variants = {
    'bytes': {},
    'bpe': {'CausalLM.tokenizer': @BPE(), 'BPE.vocab_size': 261},
    'own': {'Trainer.writers': [@WandB]},
  }
  seeds = 2
""")
  names = "tokenizers (BPE), wandb (WandB): pip install 't2x[samples,trackers]'"
  expected = 2, '', f't2x: packages are not installed: {names}\n'
  assert t2x(*command, tmp_path / 'sweep.gin') == expected
