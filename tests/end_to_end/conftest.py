"""Tiny experiments, one of each task (some in tests/helpers/task_experiments.py), on data in a temporary folder."""

import functools
import json
import random
from pathlib import Path

import pytest
import task_experiments

from t2x.cli import main

CONFIGS = Path(__file__).parents[2] / 'configs'

TRAINER = """
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 12
  batch_size = 8
  log_every = 3
  eval_every = 6
  checkpoint_every = 2
  schedule = @Cosine()
Cosine:
  peak = 5e-3
  warmup_steps = 2
"""

SIZE = """
d_model = 32
num_layers = 2
MLP.hidden_dim = 64
MultiHeadAttention.num_heads = 2
"""

TEXT = """
  source = @TextFiles()
  tokenizer = @Bytes()
  length = 64
TextFiles:
  train = '{data}/train-*.txt'
  validation = '{data}/validation-*.txt'
vocab_size = 261
"""

LABELLED = """
  source = @JsonLines()
  tokenizer = @Bytes()
  length = 48
JsonLines:
  train = '{data}/train-NAME.jsonl'
  validation = '{data}/validation-NAME.jsonl'
include '{configs}/models/small_encoder_without_head.gin'
vocab_size = 261
"""

PAIRS = """
Experiment.evaluations = {{'translations': @Translations()}}
Translations:
  num_examples = 4
  batch_size = 4
TSV:
  train = '{data}/train.tsv'
  validation = '{data}/validation.tsv'
vocab_size = 261
"""

EXPERIMENTS = {
  'causal_lm': """
include '{configs}/models/small_decoder.gin'
Experiment.task = @CausalLM()
Experiment.evaluations = {{'samples': @Samples()}}
Samples:
  prompts = ['the ']
  num_tokens = 8
CausalLM:
"""
  + TEXT,
  'masked_lm': """
include '{configs}/models/small_encoder.gin'
Experiment.task = @MaskedLM()
MaskedLM:
"""
  + TEXT,
  'translation': """
include '{configs}/models/small_encoder_decoder.gin'
Experiment.task = @Translation()
Translation:
  source = @TSV()
  tokenizer = @Bytes()
  source_length = 32
  target_length = 32
  strategy = @Greedy()
"""
  + PAIRS,
  'prefix_lm': """
include '{configs}/models/small_decoder.gin'
Experiment.task = @PrefixLM()
PrefixLM:
  source = @TSV()
  tokenizer = @Bytes()
  source_length = 32
  target_length = 32
  length = 96
  strategy = @Greedy()
Decoder.pattern = @Or()
Or.left = @Causal()
Or.right = @Prefix()
"""
  + PAIRS,
  'image_classification': """
include '{configs}/models/small_vit.gin'
include '{configs}/tasks/digits.gin'
grid = 4
PatchEmbedding.patch_size = 2
""",
  'span_corruption': """
include '{configs}/models/small_encoder_decoder.gin'
Experiment.task = @SpanCorruption()
SpanCorruption:
  source_length = 32
  num_sentinels = 4
"""
  + TEXT.replace('  length = 64\n', '').replace('261', '265'),
  'mixture': """
include '{configs}/models/small_decoder.gin'
Experiment.task = @Mixture()
Mixture:
  tasks = {{'even': @CausalLM(), 'lines': @lines/CausalLM()}}
  sampling = @StagedWeights()
  loss_weights = {{'lines': 0.5}}
StagedWeights.by_step = [(0, @FixedWeights()), (5, @ProportionalWeights())]
FixedWeights.weights = {{'even': 1.0, 'lines': 2.0}}
lines/CausalLM.source = @lines/TextFiles()
lines/TextFiles.per_line = True
CausalLM:
"""
  + TEXT,
  'sequence_classification': """
LanguageModel.head = @SequenceClassifier
SequenceClassifier:
  pool = @mean_tokens
  classifier = @Classifier
Classifier.num_classes = 2
Experiment.task = @SequenceClassification()
SequenceClassification:
  labels = ['long', 'short']
"""
  + LABELLED.replace('NAME', 'texts'),
  'word_classification': """
LanguageModel.head = @TokenClassifier
TokenClassifier.num_classes = 3
Experiment.task = @WordClassification()
WordClassification:
  labels = ['O', 'B-COLOUR', 'I-COLOUR']
"""
  + LABELLED.replace('NAME', 'words'),
  'span_prediction': """
LanguageModel.head = @TokenClassifier
TokenClassifier.num_classes = 2
TokenEmbedding.num_types = 2
Experiment.task = @SpanPrediction()
Experiment.evaluations = {{'answers': @Answers()}}
Answers.num_examples = 4
SpanPrediction:
  stride = 8
  question_length = 8
  eval_batch_size = 4
"""
  + LABELLED.replace('NAME', 'questions'),
}


def write_data(folder: Path) -> None:
  """Text files and sentence pairs of a few made-up words."""
  folder.mkdir()
  words = random.Random(0)
  vocabulary = ['the', 'a', 'cat', 'dog', 'sees', 'likes', 'red', 'blue', 'house', 'tree']

  def sentence():
    return ' '.join(words.choices(vocabulary, k=words.randint(2, 5)))

  for split, count in (('train', 6), ('validation', 2)):
    for i in range(count):
      (folder / f'{split}-{i}.txt').write_text('\n'.join(sentence() for _ in range(30)))
    pairs = [(s, s.upper()) for s in (sentence() for _ in range(20 * count))]
    text = ''.join(f'{source[:28]}\t{target[:28]}\n' for source, target in pairs)
    (folder / f'{split}.tsv').write_text(text)
    objects = [labelled(sentence()) for _ in range(20 * count)]
    for name in ('texts', 'words', 'questions'):
      lines = ''.join(json.dumps(one[name]) + '\n' for one in objects)
      (folder / f'{split}-{name}.jsonl').write_text(lines)


def labelled(text: str) -> dict[str, dict]:
  """One sentence as an example of each labelled task."""
  words = text.split()
  return {
    'texts': {'text': text, 'label': 'long' if len(words) > 3 else 'short'},
    'words': {
      'words': words,
      'labels': ['B-COLOUR' if word in ('red', 'blue') else 'O' for word in words],
    },
    'questions': {
      'question': 'first?',
      'context': text,
      'answers': words[:1],
      'starts': [0],
    },
  }


@pytest.fixture(scope='session')
def data(tmp_path_factory):
  """The folder of the made-up data; prepared data is cached beside it."""
  folder = tmp_path_factory.mktemp('end_to_end')
  patch = pytest.MonkeyPatch()
  patch.setenv('T2X_CACHE', str(folder / 'cache'))
  write_data(folder / 'data')
  task_experiments.write_data(folder / 'data')
  yield folder / 'data'
  patch.undo()


@pytest.fixture(scope='session')
def write_experiment(data):
  """`write_experiment(folder, name, extra)` writes the tiny config of that experiment, changed by the
  settings `extra`, and gives its path."""

  def write(folder: Path, name: str, extra: str = '') -> Path:
    if name in EXPERIMENTS:
      text = EXPERIMENTS[name] + SIZE
    else:
      text = task_experiments.EXPERIMENTS[name] + task_experiments.FEW
    text = text.format(configs=CONFIGS, data=data)
    # Images take a gentler rate: their classifier starts from zero.
    rate = '1e-3' if name == 'image_classification' else '5e-3'
    path = folder / f'{name}.gin'
    path.write_text(text + TRAINER.replace('5e-3', rate))
    if extra:
      # What another file has bound may be bound again.
      path = path.rename(folder / f'{name}_before.gin')
      text, path = f"include '{path}'\n{extra}", folder / f'{name}.gin'
      path.write_text(text)
    return path

  return write


@pytest.fixture
def experiment(write_experiment, tmp_path):
  """`experiment(name)` writes the tiny config of that experiment and gives its path."""
  return functools.partial(write_experiment, tmp_path)


@pytest.fixture(scope='session')
def short_runs(write_experiment, tmp_path_factory):
  """`short_runs(name)`: the folder of a run of three steps without further evaluations, trained once."""

  @functools.cache
  def train(name: str) -> Path:
    folder = tmp_path_factory.mktemp(name)
    settings = 'Trainer.num_steps = 3\nExperiment.evaluations = {}\n'
    config = write_experiment(folder, name, settings)
    assert main(['train', str(config), '--out', str(folder / 'run')]) == 0
    return folder / 'run'

  return train


@pytest.fixture(scope='session')
def run(short_runs):
  """The folder of a short run of a causal language model."""
  return short_runs('causal_lm')


@pytest.fixture
def t2x(capsys, caplog):
  """`t2x(*args) -> (exit code, stdout, stderr)`: the command line in this process."""

  def run(*args: object) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
      code = main([str(arg) for arg in args])
    except SystemExit as stop:
      code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err

  return run
