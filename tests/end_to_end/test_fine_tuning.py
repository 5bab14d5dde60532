"""Tasks over labelled texts, from nothing and from another run, through the command line."""

import json
import random
import re
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / 'configs'

SMALL = """
d_model = 32
num_layers = 1
MLP.hidden_dim = 64
MultiHeadAttention.num_heads = 2
vocab_size = 261
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 8
  batch_size = 8
  log_every = 4
  eval_every = 0
  schedule = @Cosine()
Cosine:
  peak = 1e-2
  warmup_steps = 1
"""

DATA = """
  source = @JsonLines()
  tokenizer = @Bytes()
  length = 40
JsonLines:
  train = '{data}/{task}.train.jsonl'
  validation = '{data}/{task}.validation.jsonl'
"""

ENCODER = "include '{configs}/models/small_encoder_without_head.gin'\n"

TASKS = {
  'texts': ENCODER
  + """
LanguageModel.head = @SequenceClassifier
SequenceClassifier.pool = @mean_tokens
Classifier.num_classes = 2
Experiment.task = @SequenceClassification()
SequenceClassification:
  labels = ['0', '1']
"""
  + DATA,
  'words': ENCODER
  + """
LanguageModel.head = @TokenClassifier
TokenClassifier.num_classes = 3
Experiment.task = @WordClassification()
WordClassification:
  labels = ['O', 'B-X', 'I-X']
"""
  + DATA,
  'spans': ENCODER
  + """
LanguageModel.head = @TokenClassifier
TokenClassifier.num_classes = 2
TokenEmbedding.num_types = 2
Experiment.task = @SpanPrediction()
Experiment.evaluations = {{'answers': @Answers()}}
Answers.num_examples = 6
SpanPrediction:
  stride = 8
  question_length = 8
  null_threshold = None
"""
  + DATA,
}

METRICS = {
  'texts': {'loss', 'accuracy', 'f1', 'macro_f1'},
  'words': {'loss', 'accuracy', 'entity_precision', 'entity_recall', 'entity_f1'},
  'spans': {'loss', 'span_accuracy', 'answers/exact_match', 'answers/f1'},
}

# What is asked, and what the answer looks like.
PROMPTS = {
  'texts': {'so good': '[01]', '': '[01]'},
  'words': {'a Bo ' * 12: r'(a/\S+ Bo/\S+ ?){12}', 'Cy': r'Cy/(O|[BI]-X)'},
  'spans': {'size?\tred size 42': '(red|size|42| )+', 'size?\t' + 'x' * 60: 'x+'},
}


def write_data(folder):
  """Twenty-odd examples of each task; a number of rows that no batch divides."""
  draw = random.Random(0)
  for split, count in (('train', 24), ('validation', 11)):
    texts, words, spans = [], [], []
    for _ in range(count):
      label = draw.randrange(2)
      texts.append({'text': draw.choice(['so bad', 'so good'][label:][:1]), 'label': label})
      names = [draw.choice(['a', 'Bo', 'Cy']) for _ in range(draw.randrange(2, 14))]
      tags = [
        'O' if name == 'a' else 'I-X' if i and names[i - 1] != 'a' else 'B-X'
        for i, name in enumerate(names)
      ]
      words.append({'words': names, 'labels': tags})
      context = ' '.join(draw.choice(['red', 'blue']) for _ in range(4)) + ' size 42 ' + 'x' * 20
      answer = {'answers': ['42'], 'starts': [context.index('42')]}
      spans.append({'question': 'size?', 'context': context} | answer)
    for task, examples in (('texts', texts), ('words', words), ('spans', spans)):
      lines = ''.join(json.dumps(example) + '\n' for example in examples)
      (folder / f'{task}.{split}.jsonl').write_text(lines)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('labelled')
  write_data(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('T2X_CACHE', str(folder / 'cache'))
    yield folder


@pytest.fixture
def config(folder, tmp_path):
  def write(task, extra=''):
    path = tmp_path / f'{task}.gin'
    path.write_text(TASKS[task].format(configs=CONFIGS, data=folder, task=task) + SMALL)
    if extra:
      # What another file has bound may be bound again.
      text, path = f"include '{path}'\n{extra}", tmp_path / f'{task}_changed.gin'
      path.write_text(text)
    return path

  return write


@pytest.mark.parametrize('task', TASKS)
def test_train_then_eval(task, config, t2x, metrics, tmp_path):
  out = tmp_path / 'run'
  code, stdout, stderr = t2x('train', config(task), '--out', out)
  assert (code, stdout) == (0, ''), stderr
  lines = metrics(out)
  first, last = (line for line in lines if line['split'] == 'train')
  assert last['loss'] < first['loss']
  assert METRICS[task] <= lines[-1].keys()
  # Only spans have further evaluations, which the limit is of.
  limit = ['--limit', 6] if task == 'spans' else []
  code, stdout, stderr = t2x('eval', out, '--json', *limit, '--gin.Trainer.batch_size=3')
  assert code == 0, stderr
  again = json.loads(stdout)
  # Other batches, another last one: the same numbers.
  for metric in METRICS[task]:
    assert again[metric] == pytest.approx(lines[-1][metric], rel=1e-5), metric
  flags = [f'--prompt={prompt}' for prompt in PROMPTS[task]]
  code, stdout, stderr = t2x('generate', out, '--json', *flags)
  assert code == 0, stderr
  answers = [json.loads(line) for line in stdout.splitlines()]
  assert [answer['prompt'] for answer in answers] == list(PROMPTS[task])
  for answer, allowed in zip(answers, PROMPTS[task].values(), strict=True):
    assert re.fullmatch(allowed, answer['text'])


def test_a_causal_run_is_fine_tuned_with_the_joint_objective(
  folder, config, t2x, metrics, tmp_path
):
  pretrained = tmp_path / 'pretrained.gin'
  pretrained.write_text(
    f"""
include '{CONFIGS}/models/small_decoder.gin'
Experiment.task = @CausalLM()
CausalLM:
  source = @JsonLines()
  tokenizer = @Bytes()
  length = 40
JsonLines.train = '{folder}/texts.train.jsonl'
CausalLM.eval_split = 'train'
"""
    + SMALL
  )
  first, out = tmp_path / 'first', tmp_path / 'second'
  assert t2x('train', pretrained, '--out', first)[0] == 0
  text = TASKS['texts'].replace('small_encoder_without_head', 'small_decoder')
  text = text.format(configs=CONFIGS, data=folder, task='texts') + SMALL
  tuned = tmp_path / 'tuned.gin'
  tuned.write_text(
    text.replace('@mean_tokens', '@last_token').replace('@Bytes()', '@RunTokenizer()')
    + f"""
RunTokenizer:
  run = '{first}'
  vocab_size = 261
SequenceClassification.auxiliaries = {{'lm': @LanguageModelling()}}
LanguageModelling.weight = 0.5
Experiment.init_from = @InitFrom()
InitFrom.run = '{first}'
"""
  )
  code, _, stderr = t2x('train', tuned, '--out', out)
  assert code == 0, stderr
  table = (out / 'init_from.txt').read_text().splitlines()
  assert '2 new' in table[0]
  assert '0 unused' in table[0]
  assert sorted(line.split()[0] for line in table if 'new (' in line) == [
    'head.classifier.out.bias',
    'head.classifier.out.kernel',
  ]
  lines = metrics(out)
  assert {'lm_loss', 'lm', 'accuracy'} <= lines[0].keys()
  assert lines[0]['lm'] == pytest.approx(0.5 * lines[0]['lm_loss'], rel=1e-5)
  # What was learnt of the text is there from the first step on.
  assert lines[0]['lm_loss'] < 5.0


def test_data_that_was_not_fetched_is_an_error(t2x, tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  code, _, stderr = t2x('train', CONFIGS / 'runs/sentiment.gin', '--out', tmp_path / 'run')
  assert code == 2
  assert 'run `t2x data fetch sentiment`' in stderr.splitlines()[-1]
