"""No command replaces a file that t2x did not write, and outputs are checked before anything else is done."""

import json
import os
import threading

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


def test_the_other_examples_replace_no_file_but_an_empty_one(texts, t2x):
  (texts / 'out.jsonl').touch()
  assert t2x('data', 'dedup', 'texts.gin', '--out', 'out.jsonl')[0] == 0
  assert len((texts / 'out.jsonl').read_text().splitlines()) == 2
  (texts / 'notes.md').write_text('my notes')
  code, _, err = t2x('data', 'dedup', 'texts.gin', '--out', 'notes.md')
  assert (code, (texts / 'notes.md').read_text()) == (2, 'my notes'), err
  assert '--out notes.md would replace a file that is no page, table or figure of t2x' in err


OUTPUTS = {
  'look': ('look', '{run}', '--prompt', 'the', '--out', '{out}'),
  'look --png': ('look', '{run}', '--prompt', 'the', '--out', 'new.html', '--png', '{folder}'),
  'look --svg': ('look', '{run}', '--prompt', 'the', '--out', 'new.html', '--svg', '{folder}'),
  'generate': (
    'generate',
    '{run}',
    '--prompt',
    'the',
    '--max-new-tokens',
    '1',
    '--output',
    '{out}',
  ),
  'compare': ('runs', 'compare', '{run}', '--out', '{out}'),
  'compare figure': ('runs', 'compare', '{run}', '--out', '{figure}'),
  'dedup': ('data', 'dedup', 'texts.gin', '--out', '{out}'),
  'inspect': ('data', 'inspect', 'texts.gin', '--statistics', '--html', '{out}'),
  'pattern': ('show', '{run}/config.gin', '--pattern', '{figure}'),
  'parts': ('parts', '--markdown', '{folder}'),
  'launch': ('launch', 'local', '{run}/config.gin', '--gpus', '2', '--out', '{out}'),
}


@pytest.mark.parametrize('link', [False, True], ids=['file', 'link'])
@pytest.mark.parametrize('command', OUTPUTS.values(), ids=OUTPUTS)
def test_no_output_replaces_a_file_of_the_user(texts, run, t2x, command, link):
  folder = texts / 'mine'
  folder.mkdir()
  names = ['thesis', 'figure.svg', 'maps.png', 'maps.svg', 'Norm.md']
  for name in names:
    (folder / name).write_text('mine')
    if link:
      (texts / name).write_text('mine')
      (folder / name).unlink()
      (folder / name).symlink_to(texts / name)
  places = {'run': run, 'folder': folder, 'out': folder / 'thesis', 'figure': folder / 'figure.svg'}
  code, _, err = t2x(*(word.format_map(places) for word in command))
  assert (code, err.count('\n')) == (2, 1), err
  assert 'would replace' in err or 'exists with other content' in err, err
  assert [(folder / name).read_text() for name in names] == ['mine'] * len(names)
  assert [(folder / name).is_symlink() for name in names] == [link] * len(names)


@pytest.mark.parametrize(
  'name', ['look', 'look --png', 'compare', 'compare figure', 'inspect', 'pattern', 'launch']
)
def test_files_of_t2x_are_replaced_through_links(texts, run, t2x, name):
  places = {'run': run, 'folder': 'mine', 'out': 'mine/page', 'figure': 'mine/figure.svg'}
  (texts / 'mine').mkdir()
  command = [word.format_map(places) for word in OUTPUTS[name]]
  assert t2x(*command)[0] == 0
  (written,) = [
    path for path in (texts / 'mine').iterdir() if path.stem in ('page', 'figure', 'maps')
  ]
  written.rename(texts / 'target')
  written.symlink_to(texts / 'target')
  before = (texts / 'target').read_bytes()
  code, _, err = t2x(*command)
  assert code == 0, err
  assert written.is_symlink() and (texts / 'target').read_bytes()[:100] == before[:100]
  assert not list(texts.rglob('.t2x-*'))


@pytest.mark.parametrize('name', ['look', 'generate', 'compare', 'dedup', 'inspect', 'launch'])
def test_a_pipe_gets_the_output_and_stays(texts, run, t2x, name):
  pipe, read = texts / 'pipe', []
  os.mkfifo(pipe)
  reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
  reader.start()
  code, _, err = t2x(*(word.format(run=run, out=pipe, folder='') for word in OUTPUTS[name]))
  assert code == 0, err
  reader.join(10)
  assert pipe.is_fifo() and read[0]


@pytest.mark.parametrize(
  ('name', 'problem'),
  [
    ('a' * 300, 'File name too long'),
    ('a\0b', 'null'),
    ('a\udcff', 'UTF-8'),
    ('loop', 'levels of'),
  ],
)
def test_a_file_that_cannot_be_made_is_refused_in_one_line(texts, run, t2x, name, problem):
  (texts / 'loop').symlink_to('loop')
  code, _, err = t2x('generate', run, '--prompt', 'the', '--output', name)
  assert (code, err.count('\n')) == (2, 1), err
  assert 'cannot be written' in err and problem in err


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
