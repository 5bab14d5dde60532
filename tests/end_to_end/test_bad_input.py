"""Bad input gets one clear line and exit code 2, never a traceback."""

import fcntl

import pytest


def refused(result, *parts):
  code, stdout, stderr = result
  assert code == 2, stderr
  assert stdout == ''
  assert 'Traceback' not in stderr
  for part in parts:
    assert part in stderr, stderr


def test_misspelt_parameter(experiment, t2x):
  result = t2x('check', experiment('causal_lm', 'MLP.hiden_dim = 3\n'))
  refused(result, 'causal_lm.gin:', "MLP has no parameter 'hiden_dim'", "'hidden_dim'")


def test_missing_config_file(t2x, tmp_path):
  refused(t2x('train', tmp_path / 'none.gin'), 'none.gin')


def test_heads_that_do_not_divide(experiment, t2x, tmp_path):
  refused(
    t2x('check', experiment('causal_lm', 'MultiHeadAttention.num_heads = 5\n')), 'num_heads', '5'
  )


def test_vocabulary_smaller_than_the_tokenizer(experiment, t2x):
  file = experiment('causal_lm', 'vocab_size = 100\n')
  refused(t2x('check', file), '100', '261', 'TokenEmbedding.vocab_size')


def test_sequence_longer_than_learned_positions(experiment, t2x):
  extra = 'Decoder.encoding = @LearnedPositions\nLearnedPositions.max_length = 16\n'
  refused(t2x('check', experiment('causal_lm', extra)), '64', '16')


def test_classes_that_do_not_fit(experiment, t2x):
  file = experiment('image_classification', 'Classifier.num_classes = 7\n')
  refused(t2x('check', file), '7', '10', 'Classifier.num_classes')


@pytest.mark.parametrize('text', ['', '\x00\xff'])
def test_empty_or_unreadable_data_file(text, experiment, t2x, tmp_path):
  bad = tmp_path / 'bad.txt'
  bad.write_bytes(text.encode('latin-1'))
  file = experiment('causal_lm', f"TextFiles.train = '{bad}'\n")
  refused(t2x('train', file, '--out', tmp_path / 'run'), 'bad.txt')


def test_missing_data_file(experiment, t2x, tmp_path):
  file = experiment('causal_lm', "TextFiles.train = '/nowhere/*.txt'\n")
  refused(t2x('train', file, '--out', tmp_path / 'run'), '/nowhere/*.txt')
  # Nothing was trained: the corrected config may have the folder.
  assert t2x('train', experiment('causal_lm'), '--out', tmp_path / 'run')[0] == 0


def test_run_folder_of_another_config(experiment, t2x, tmp_path):
  out, file = tmp_path / 'run', experiment('masked_lm')
  assert t2x('train', file, '--out', out)[0] == 0
  flags = ['--gin.Trainer.seed=1']
  refused(
    t2x('train', file, '--out', out, *flags),
    'trainer.seed: 0 -> 1',
    '--fresh',
    '--out',
    'another config',
  )
  code = t2x('train', file, '--out', out, '--fresh', *flags)[0]
  assert code == 0
  assert (tmp_path / 'run.old-1' / 'metrics.jsonl').exists()


def test_one_training_in_a_folder_at_a_time(experiment, t2x, tmp_path):
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


def test_checkpoint_that_does_not_fit_names_the_parameter(experiment, t2x, tmp_path):
  out, file = tmp_path / 'run', experiment('masked_lm')
  assert t2x('train', file, '--out', out)[0] == 0
  result = t2x('eval', out, '--gin.MLP.hidden_dim=48')
  refused(result, 'feed_forward', '64', '48')


def test_run_folder_that_is_none(t2x, tmp_path):
  refused(t2x('eval', tmp_path), 'config.gin')


def test_generate_needs_a_prompt(experiment, t2x, tmp_path):
  out = tmp_path / 'run'
  assert t2x('train', experiment('causal_lm'), '--out', out)[0] == 0
  refused(t2x('generate', out), '--prompt', '--input')
  bad = tmp_path / 'in.jsonl'
  bad.write_text('{"prompt": "a"}\nnot json\n')
  refused(t2x('generate', out, '--input', bad), 'in.jsonl:2')


def test_a_masked_lm_needs_a_mask_in_the_prompt(experiment, t2x, tmp_path):
  out = tmp_path / 'run'
  assert t2x('train', experiment('masked_lm'), '--out', out)[0] == 0
  refused(t2x('generate', out, '--prompt', 'a'), 'has no mask to fill')


def test_traceback_flag_shows_where(t2x, tmp_path):
  code, _, err = t2x('check', tmp_path / 'none.gin', '--traceback')
  assert code == 2
  assert 'Traceback' in err
  assert 'none.gin' in err.splitlines()[-1]
