"""No command replaces a file that it reads, and outputs are checked before anything else is done."""

import json
import os

import pytest

CONFIG = """
Experiment.task = @CausalLM()
CausalLM.source = @JsonLines()
CausalLM.tokenizer = @Bytes()
CausalLM.length = 16
JsonLines.train = '{folder}/train.jsonl'
"""


@pytest.fixture
def texts(tmp_path, monkeypatch):
  """The config of a task on train.jsonl, which has one near-duplicate, in the working directory."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  lines = ['one two three four five six', 'seven eight', 'one two three four five six']
  (tmp_path / 'train.jsonl').write_text(''.join(json.dumps({'text': x}) + '\n' for x in lines))
  (tmp_path / 'base.gin').write_text(CONFIG.format(folder=tmp_path))
  (tmp_path / 'texts.gin').write_text("include 'base.gin'\n")
  return tmp_path


@pytest.mark.parametrize(
  'link', [None, os.symlink, os.link], ids=['itself', 'symlink', 'hard link']
)
@pytest.mark.parametrize('name', ['train.jsonl', 'texts.gin', 'base.gin'])
@pytest.mark.parametrize('command', [('dedup', '--out'), ('inspect', '--statistics', '--html')])
def test_data_commands_refuse_to_replace_their_inputs(texts, t2x, command, name, link):
  before, out = (texts / name).read_text(), texts / name
  if link is not None:
    out = texts / 'link'
    link(texts / name, out)
  verb, *options = command
  code, _, err = t2x('data', verb, texts / 'texts.gin', *options, out)
  assert (code, (texts / name).read_text(), err.count('\n')) == (2, before, 1), err
  assert f'{out} would replace' in err


def test_the_other_examples_replace_an_older_output(texts, t2x):
  (texts / 'out.jsonl').write_text('old')
  assert t2x('data', 'dedup', 'texts.gin', '--out', 'out.jsonl')[0] == 0
  assert len((texts / 'out.jsonl').read_text().splitlines()) == 2


@pytest.mark.parametrize('name', ['config.gin', 'metrics.jsonl', 'checkpoints/3/checksums.json'])
@pytest.mark.parametrize(
  'command',
  [
    ('look', '{run}', '--prompt', 'the', '--out'),
    ('generate', '{run}', '--prompt', 'the', '--max-new-tokens', '1', '--output'),
    ('runs', 'compare', '{run}', '--out'),
  ],
  ids=lambda command: command[0],
)
def test_commands_refuse_to_replace_files_of_the_run(run, t2x, command, name):
  before = (run / name).read_bytes()
  code, _, err = t2x(*(word.format(run=run) for word in command), run / name)
  assert (code, (run / name).read_bytes()) == (2, before), err
  assert f'{run / name} would replace' in err


def test_look_refuses_to_replace_its_input(run, t2x, tmp_path):
  text = tmp_path / 'maps.png'
  text.write_text('the cat')
  for option, place in (('--out', text), ('--png', tmp_path)):
    options = {'--out': tmp_path / 'page.html', option: place}
    code, _, err = t2x(
      'look', run, '--input', text, *(word for pair in options.items() for word in pair)
    )
    assert (code, text.read_text()) == (2, 'the cat'), err


@pytest.mark.parametrize('name', ['config.gin', 'summary.txt', 'tokenizer/tokenizer.json'])
def test_training_refuses_to_replace_files_of_a_folder_that_is_no_run(
  t2x, experiment, tmp_path, name
):
  config, file = experiment('causal_lm'), tmp_path / 'mine' / name
  file.parent.mkdir(parents=True)
  file.write_text(f"# mine\ninclude '{config}'\n")
  before = file.read_text()
  for _ in range(2):
    given = file if name == 'config.gin' else config
    code, _, err = t2x('train', given, '--out', tmp_path / 'mine')
    assert (code, file.read_text()) == (2, before), err
    assert 'is not a run folder, and training would replace' in err


@pytest.mark.parametrize(
  'command',
  [
    ('train', 'texts.gin', '--out', 'file/x/y'),
    ('sweep', 'texts.gin', '--out', 'file/x/y'),
    ('prune', '{run}', '--heads', '1', '--out', 'file/x/y'),
    ('convert', 'import', '{run}', '--out', 'file/x/y'),
    ('convert', 'export', '{run}', '--to', 'file/x/y'),
    ('convert', 'run', '{run}', '--to', 'file/x/y'),
    ('data', 'tokenizer', 'texts.gin', '--out', 'file/x/y'),
    ('data', 'fetch', 'brown', '--out', 'file/x/y'),
    ('data', 'dedup', 'texts.gin', '--out', 'file/x'),
    ('data', 'inspect', 'texts.gin', '--statistics', '--html', 'file/x'),
    ('look', '{run}', '--prompt', 'the', '--out', 'file/x'),
    ('generate', '{run}', '--prompt', 'the', '--output', 'file/x'),
    ('runs', 'compare', '{run}', '--out', 'file/x'),
    ('launch', 'local', 'texts.gin', '--gpus', '2', '--out', 'file/x'),
  ],
  ids=' '.join,
)
def test_an_output_below_a_file_is_refused_before_any_work(texts, run, t2x, command, monkeypatch):
  (texts / 'file').write_text('a file')
  # No command may get to data or parameters.
  monkeypatch.setattr('t2x.data.JsonLines.load', None)
  monkeypatch.setattr('t2x.train.evaluation.Inference.__init__', None)
  code, _, err = t2x(*(word.format(run=run) for word in command))
  assert (code, err.count('\n')) == (2, 1), err
  assert 'file' in err and '--traceback' not in err


def test_a_saved_tokenizer_replaces_no_other_files(texts, t2x):
  (texts / 'other').mkdir()
  (texts / 'other' / 'tokenizer.json').write_text('{}')
  code, _, err = t2x('data', 'tokenizer', 'texts.gin', '--out', 'other')
  assert (code, (texts / 'other' / 'tokenizer.json').read_text()) == (2, '{}'), err


def test_a_run_is_not_copied_into_itself(run, t2x):
  code, _, err = t2x('convert', 'run', run, '--to', run / 'new')
  assert (code, err.count('\n'), (run / 'new').exists()) == (2, 1, False), err
  assert f'{run / "new"} is inside {run}' in err
