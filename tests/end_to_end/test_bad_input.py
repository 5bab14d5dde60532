"""Bad input gets one clear line and exit code 2, never a traceback."""

import errno
import fcntl
import json
import os

import pytest

from t2x.cli import main


@pytest.mark.parametrize(
  ('name', 'setting', 'parts'),
  [
    ('causal_lm', 'vocab_size = 100', ('100', '261', 'TokenEmbedding.vocab_size')),
    (
      'causal_lm',
      'Decoder.encoding = @LearnedPositions\nLearnedPositions.max_length = 16',
      ('64', '16'),
    ),
    ('image_classification', 'Classifier.num_classes = 7', ('10', 'Classifier.num_classes')),
  ],
)
def test_check_refuses_sizes_that_do_not_fit(experiment, t2x, name, setting, parts):
  refused(t2x('check', experiment(name, setting + '\n')), *parts)


def refused(result, *parts):
  code, stdout, stderr = result
  assert code == 2, stderr
  assert stdout == ''
  assert 'Traceback' not in stderr
  for part in parts:
    assert part in stderr, stderr


def test_the_run_folder_of_another_config_is_refused_or_moved_aside(experiment, t2x, tmp_path):
  out, file = tmp_path / 'run', experiment('masked_lm', 'Trainer.num_steps = 3\n')
  assert t2x('train', file, '--out', out)[0] == 0
  flags = ['--gin.Trainer.seed=1']
  refused(
    t2x('train', file, '--out', out, *flags),
    'trainer.seed: 0 -> 1',
    '--fresh',
    '--out',
    'another config',
  )
  refused(t2x('eval', out, '--gin.MLP.hidden_dim=48'), 'feed_forward', '64', '48')
  code = t2x('train', file, '--out', out, '--fresh', *flags)[0]
  assert code == 0
  assert (tmp_path / 'run.old-1' / 'metrics.jsonl').exists()


def test_a_folder_has_one_training_process_at_a_time(experiment, t2x, tmp_path):
  out = tmp_path / 'run'
  out.mkdir()
  with (out / '.lock').open('w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    for flags in ([], ['--fresh']):
      code, _, err = t2x('train', experiment('masked_lm'), '--out', out, *flags)
      assert code == 1
      assert err.count('\n') == 1
      assert f'another process is training in {out}' in err
  assert [one.name for one in out.iterdir()] == ['.lock']


@pytest.mark.parametrize(
  ('words', 'text'),
  [
    (('look', '{run}', '--prompt', 'a\udcff'), '--prompt: unpaired surrogate at character 1'),
    (('look', '{run}', '--input', 'a\0b'), 'a\\x00b cannot be read: '),
    (('look', '{run}', '--input', '{folder}/none'), '{folder}/none cannot be read: No such file'),
    (('look', '{run}', '--input', '{folder}/bytes'), '{folder}/bytes is not a UTF-8 text file'),
    (('look', '{run}', '--input', '{folder}/pipe'), '{folder}/pipe is not a regular file'),
    (('look', '{images}', '--input', '{folder}/bytes'), '{folder}/bytes cannot be read: no image'),
    (('look', '{images}', '--input', '{folder}/pipe'), '{folder}/pipe is not a regular file'),
    (('generate', '{run}', '--input', '{folder}/pipe'), '{folder}/pipe is not a regular file'),
    (('generate', '{run}', '--input', '/dev/zero'), '/dev/zero is not a regular file'),
  ],
)
def test_inputs_that_cannot_be_read_are_named(run, short_runs, t2x, tmp_path, words, text):
  (tmp_path / 'bytes').write_bytes(b'\xff\xfe')
  os.mkfifo(tmp_path / 'pipe')
  places = {'run': run, 'folder': tmp_path, 'images': ''}
  if '{images}' in words:
    places['images'] = short_runs('image_classification')
  code, _, err = t2x(*(word.format_map(places) for word in words))
  assert (code, err.count('\n')) == (2, 1), err
  assert text.format_map(places) in err


@pytest.mark.parametrize('tokens', ['1e-300', '0', 'nan', 'inf'])
def test_a_plan_for_less_than_a_token_is_refused(t2x, capsys, tokens):
  with pytest.raises(SystemExit) as error:
    main(['plan', 'x.gin', '--kind', 'h100', '--tokens', tokens])
  assert error.value.code == 2
  assert 'argument --tokens: must be' in capsys.readouterr().err


def test_a_full_disk_during_a_command_is_one_line_without_advice_for_bugs(
  t2x, tmp_path, monkeypatch
):
  def full(*_):
    raise OSError(errno.ENOSPC, 'No space left on device', '/disk/file')

  monkeypatch.setattr('t2x.cli.check.run', full)
  code, _, err = t2x('check', 'x.gin')
  assert (code, err) == (1, 't2x: /disk/file: No space left on device\n')


def test_options_without_effect_are_refused(run, short_runs, t2x, experiment, tmp_path):
  out = tmp_path / 'out.jsonl'
  for words, option in (
    (('eval', run, '--limit', 2), '--limit'),
    (('generate', run, '--prompt', 'a', '--json', '--output', out), '--json'),
    (('show', run / 'config.gin', '--sharding', '--pattern', tmp_path / 'a.png'), '--pattern'),
  ):
    refused(t2x(*words), f'{option} has no effect')
  assert not out.exists()


def test_a_sample_depends_on_the_seed_and_the_number_of_its_prompt(run, t2x):
  prompts = [f'--prompt={letter}' for letter in 'aaaaa']

  def texts(*options):
    command = 'generate', run, *prompts, '--temperature', 1, '--max-new-tokens', 8, '--json'
    code, stdout, err = t2x(*command, *options)
    assert code == 0, err
    return [json.loads(line)['text'] for line in stdout.splitlines()]

  whole = texts('--seed', 3)
  assert texts('--seed', 3, '--batch-size', 2) == texts('--seed', 3, '--batch-size', 1) == whole
  assert len({*whole, *texts('--seed', 4, '--batch-size', 1)}) == 10


def test_the_traceback_option_prints_the_traceback(t2x, tmp_path):
  code, _, err = t2x('check', tmp_path / 'none.gin', '--traceback')
  assert code == 2
  assert 'Traceback' in err
  assert 'none.gin' in err.splitlines()[-1]
