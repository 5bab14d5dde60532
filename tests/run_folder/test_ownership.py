"""A run folder belongs to the values of a config, once a step was done for them."""

import functools
import sys
from pathlib import Path

import pytest

from t2x import config as config_lib
from t2x.base.errors import UserError
from t2x.experiments import changed_settings, read_config
from t2x.run_folder import ownership
from t2x.run_folder.status import recorded

CONFIG = """
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 10
  batch_size = 4
"""


@pytest.fixture
def write(tmp_path):
  """`write(text, name='x.gin')` writes a gin file and loads it."""

  def make(text, name='x.gin', **settings):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return read_config([path], **settings)

  return make


def claim_folder(folder, config, fresh):
  changed = functools.partial(changed_settings, config, dict)
  return ownership.claim_folder(folder, config_lib.render(config), changed, fresh)


def start(folder, config, *made):
  """Claims the folder as a training does; then writes status.json, config.gin and the files of `made`."""
  with (
    claim_folder(folder, config, fresh=False),
    recorded(folder, num_steps=10, metric='loss', mode='min'),
  ):
    (folder / 'config.gin').write_text(config_lib.render(config))
    for name in made:
      path = folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text('{"step": 3, "split": "train"}\n')


def names(folder):
  return sorted(path.name for path in folder.iterdir() if path.name != 'status.json')


CHECKPOINT, TRAIN_LINE, TOKENIZER = (
  'checkpoints/5/state',
  'metrics.jsonl',
  'tokenizer/tokenizer.json',
)


@pytest.mark.parametrize('made', [CHECKPOINT, TRAIN_LINE])
def test_a_changed_value_is_refused_with_its_difference_once_a_step_was_done(write, tmp_path, made):
  start(tmp_path / 'run', write(CONFIG), made)
  with pytest.raises(UserError, match=r'another config:\n.*num_steps: 10 -> 11\n.*--fresh'):
    start(tmp_path / 'run', write(CONFIG.replace('10', '11')))


def test_a_resumed_run_may_have_another_time_limit(write, tmp_path):
  start(tmp_path / 'run', write(CONFIG), CHECKPOINT)
  start(tmp_path / 'run', write(CONFIG + '  max_minutes = 5\n'))


def test_a_start_that_failed_before_its_first_step_does_not_block_the_corrected_config(
  write, tmp_path
):
  run = tmp_path / 'run'
  start(run, write(CONFIG), TOKENIZER, 'summary.txt', 'init_from.txt', 'fault-1.json', 'mine.txt')
  (run / 'metrics.jsonl').write_text('')
  (run / 'checkpoints' / '5.orbax-checkpoint-tmp-1').mkdir(parents=True)
  start(run, write(CONFIG.replace('10', '11')))
  assert names(run) == ['.lock', 'checkpoints', 'config.gin', 'mine.txt']


def test_a_run_without_a_checkpoint_fits_its_tokenizer_again(write, tmp_path):
  start(tmp_path / 'run', write(CONFIG), TOKENIZER, TRAIN_LINE, 'skips.json')
  start(tmp_path / 'run', write(CONFIG))
  assert names(tmp_path / 'run') == ['.lock', 'config.gin', 'metrics.jsonl', 'skips.json']
  start(tmp_path / 'run', write(CONFIG), TOKENIZER, CHECKPOINT)
  start(tmp_path / 'run', write(CONFIG))
  assert (tmp_path / 'run' / TOKENIZER).exists()


@pytest.mark.parametrize(
  'text',
  [
    '# A comment.\n' + CONFIG,
    'steps = 10\n' + CONFIG.replace('10', '%steps'),
    CONFIG + '  seed = 0\n  optimizer = @AdamW()\n',
    CONFIG.replace('@Trainer()', '@t/Trainer()').replace('Trainer:', 't/Trainer:'),
    CONFIG.replace('  num_steps = 10\n', '') + '  num_steps = 10\n',
  ],
  ids=['comment', 'macro', 'defaults', 'scope', 'order'],
)
def test_the_same_values_in_other_words_are_the_same_config(write, tmp_path, text):
  start(tmp_path / 'run', write(CONFIG), CHECKPOINT)
  start(tmp_path / 'run', write(text))


@pytest.fixture
def project(tmp_path, monkeypatch):
  """`project(folder)` makes a project there, with a module of its own, and forgets all others."""
  monkeypatch.setattr(sys, 'path', list(sys.path))
  before = list(sys.path)

  def make(folder):
    (tmp_path / folder).mkdir()
    config_lib.trust(tmp_path / folder)
    path = tmp_path / folder / 'parts_of_mine.py'
    path.write_text('def thing(num_steps): return 0.5\n')
    forget()
    return path.parent

  def forget():
    sys.modules.pop('parts_of_mine', None)
    sys.path[:] = before

  yield make
  forget()


OWN = 'import parts_of_mine\n' + CONFIG + '  writers = [@thing]\n'


@pytest.mark.parametrize('moved', [True, False], ids=['moved', 'copied'])
def test_a_run_is_resumed_after_its_project_was_moved_or_copied(project, write, tmp_path, moved):
  old = project('old')
  start(tmp_path / 'run', write(OWN, 'old/x.gin'), CHECKPOINT)
  new = project('new')
  if moved:
    (old / 'parts_of_mine.py').unlink()
  start(tmp_path / 'run', write(OWN, 'new/x.gin'))
  text = (tmp_path / 'run' / 'config.gin').read_text()
  assert text.startswith(f'import parts_of_mine\n# modules in: {new}\n# module parts_of_mine: ')


def test_a_run_folder_finds_a_module_of_the_working_directory_again(project, write, monkeypatch):
  folder = project('work')
  monkeypatch.chdir(folder)
  config = write(OWN, 'configs/x.gin')
  assert f'# modules in: {folder}\n' in config_lib.render(config)


@pytest.mark.parametrize(
  ('text', 'problem'),
  [
    (CONFIG.replace('num_steps', 'steps'), r'config\.gin:\d+: .*steps'),
    (CONFIG + '  stepz = 1\n  stepzz = 1\n', r'config\.gin:\d+: .*stepz.*\(and 1 more\)'),
    (OWN.replace('parts_of_mine', 'gone_with_it'), r"no module named 'gone_with_it'"),
  ],
)
def test_an_unreadable_old_config_is_a_one_line_error(write, tmp_path, text, problem):
  start(tmp_path / 'run', write(CONFIG), CHECKPOINT)
  (tmp_path / 'run' / 'config.gin').write_text(text)
  with pytest.raises(UserError, match=rf'can no longer be read: .*{problem}.*--fresh') as error:
    start(tmp_path / 'run', write(CONFIG))
  assert len(str(error.value).splitlines()) == 1


def test_an_old_run_is_moved_aside_completely(write, tmp_path):
  start(tmp_path / 'run', write(CONFIG), CHECKPOINT)
  with claim_folder(tmp_path / 'run', write(CONFIG.replace('10', '11')), fresh=True):
    assert names(tmp_path / 'run') == ['.lock']
  assert names(tmp_path / 'run.old-1') == ['.lock', 'checkpoints', 'config.gin']


def test_a_config_that_was_rendered_elsewhere_may_be_in_a_new_folder(project, write, tmp_path):
  """A sweep writes it before a worker claims the folder, perhaps in another working directory."""
  own, config, folder = project('work'), write(OWN, 'work/x.gin'), tmp_path / 'run'
  folder.mkdir()
  text = config_lib.render(config)
  (folder / 'config.gin').write_text(text.replace(f'# modules in: {own}\n', '# modules in: /old\n'))
  with claim_folder(folder, config, fresh=False):
    pass
  (folder / '.lock').unlink()
  (folder / 'config.gin').write_text(text.replace('10', '11'))
  with pytest.raises(UserError, match='is not a run folder'), claim_folder(folder, config, False):
    pass


def contents(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in folder.rglob('*')
    if path.is_file() and path.name != '.lock'
  }


FOREIGN = {
  'thesis': ['thesis.tex'],
  'data': ['train.txt', 'images/1.png'],
  'a foreign lock': ['.lock', 'thesis.tex'],
  'a foreign status': ['status.json', 'config.gin'],
  'checkpoints of another program': ['checkpoints/5/model.pt', 'config.gin'],
  'metrics of another program': ['metrics.jsonl', 'config.gin'],
  'runs': ['a/config.gin', 'a/status.json'],
  'a sweep': ['sweep.json'],
}


@pytest.mark.parametrize('made', FOREIGN.values(), ids=FOREIGN)
def test_fresh_moves_no_folder_that_is_not_a_run(write, tmp_path, made):
  folder = tmp_path / 'thesis'
  for name in made:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text('mine')
  before = contents(folder)
  with (
    pytest.raises(UserError, match=r'thesis is not a run folder, and --fresh would move .*--out'),
    claim_folder(folder, write(CONFIG), fresh=True),
  ):
    pass
  assert contents(folder) == before
  assert not (tmp_path / 'thesis.old-1').exists()


@pytest.mark.parametrize(('place', 'out'), [('.', '.'), ('notes', '..'), ('notes', 'absolute')])
def test_fresh_moves_no_run_that_holds_the_working_directory(
  write, tmp_path, monkeypatch, place, out
):
  folder = tmp_path / 'run'
  start(folder, write(CONFIG), CHECKPOINT)
  (folder / 'notes').mkdir()
  monkeypatch.chdir(folder / place)
  out = folder if out == 'absolute' else Path(out)
  with (
    pytest.raises(UserError, match='--fresh would rename the working directory'),
    claim_folder(out, write(CONFIG), fresh=True),
  ):
    pass
  assert (folder / CHECKPOINT).exists()


def test_fresh_renames_a_link_to_a_run_and_not_its_target(write, tmp_path):
  start(tmp_path / 'disk', write(CONFIG), CHECKPOINT)
  (tmp_path / 'run').symlink_to('disk')
  with claim_folder(tmp_path / 'run', write(CONFIG), fresh=True):
    assert names(tmp_path / 'run') == ['.lock']
  assert (tmp_path / 'disk' / CHECKPOINT).exists()
  assert (tmp_path / 'run.old-1').readlink().name == 'disk'


@pytest.mark.parametrize('fresh', [True, False])
def test_a_start_that_ended_before_its_config_was_written_can_be_repeated(write, tmp_path, fresh):
  with claim_folder(tmp_path / 'run', write(CONFIG), fresh=False):
    (tmp_path / 'run' / 'log.txt').write_text('log')
  with claim_folder(tmp_path / 'run', write(CONFIG.replace('10', '11')), fresh=fresh):
    pass


def test_a_foreign_lock_makes_no_folder_a_run_and_is_not_truncated(write, tmp_path):
  folder = tmp_path / 'project'
  (folder / 'profile').mkdir(parents=True)
  (folder / 'profile' / 'me.txt').write_text('mine')
  (folder / '.lock').write_text('mine')
  with (
    pytest.raises(UserError, match=r'project is not a run folder.*profile'),
    claim_folder(folder, write(CONFIG), fresh=False),
  ):
    pass
  (folder / 'profile').rename(folder / 'mine')
  with claim_folder(folder, write(CONFIG), fresh=False):
    pass
  assert (folder / '.lock').read_text() == 'mine'


def test_a_profile_is_not_deleted_after_a_failed_start(write, tmp_path):
  start(tmp_path / 'run', write(CONFIG), 'profile/me.txt', 'summary.txt')
  start(tmp_path / 'run', write(CONFIG.replace('10', '11')))
  assert names(tmp_path / 'run') == ['.lock', 'config.gin', 'profile']


@pytest.mark.parametrize(
  ('name', 'problem'),
  [
    ('a' * 300, 'File name too long'),
    ('a\0b', 'null'),
    ('a\udcff', 'UTF-8'),
    ('/proc/run', 'No such file'),
    ('file/run', 'file is not a folder'),
  ],
)
def test_a_folder_that_cannot_be_made_is_refused_in_one_line(write, tmp_path, name, problem):
  (tmp_path / 'file').touch()
  for fresh in (True, False):
    with (
      pytest.raises(UserError, match=rf'^--out .* cannot be written: .*{problem}') as error,
      claim_folder(tmp_path / name, write(CONFIG), fresh),
    ):
      pass
    assert len(str(error.value).splitlines()) == 1
