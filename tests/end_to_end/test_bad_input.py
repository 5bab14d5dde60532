"""Bad input gets one clear line and exit code 2, never a traceback."""

import fcntl

import pytest


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


def test_the_traceback_option_prints_the_traceback(t2x, tmp_path):
  code, _, err = t2x('check', tmp_path / 'none.gin', '--traceback')
  assert code == 2
  assert 'Traceback' in err
  assert 'none.gin' in err.splitlines()[-1]
