"""A pruned run is a run: it is evaluated, fills masks and is trained further."""

import json

import pytest


@pytest.fixture(scope='module')
def folder(write_experiment, tmp_path_factory):
  """A folder with a short run `run` of a masked language model, and `pruned` without three of its heads."""
  from t2x.cli import main

  folder = tmp_path_factory.mktemp('prune')
  settings = 'Trainer.num_steps = 3\nMultiHeadAttention.num_heads = 4\n'
  config = write_experiment(folder, 'masked_lm', settings)
  run, out = str(folder / 'run'), str(folder / 'pruned')
  assert main(['train', str(config), '--out', run]) == 0
  assert main(['prune', run, '--heads', '3', '--rows', '16', '--out', out]) == 0
  return folder


def test_the_least_important_heads_are_removed(folder, t2x):
  about = json.loads((folder / 'pruned' / 'heads.json').read_text())
  (scores,), (kept,) = about['importance'].values(), about['kept'].values()
  assert [len(row) for row in scores] == [4, 4]
  removed = [
    s for row in zip(scores, kept, strict=True) for s, k in zip(*row, strict=True) if not k
  ]
  left = [s for row in zip(scores, kept, strict=True) for s, k in zip(*row, strict=True) if k]
  assert len(removed) == 3
  # Every layer keeps its most important head, whatever the others are.
  assert max(removed) <= min(left) or min(map(sum, kept)) == 1
  code, out, err = t2x('eval', folder / 'pruned', '--json')
  assert (code, json.loads(out)['step']) == (0, 0), err


def test_a_pruned_run_fills_masks(folder, t2x):
  prompt = ('--prompt', 'the c<mask>t sees <mask>', '--top-k', 3, '--json')
  code, out, err = t2x('generate', folder / 'pruned', *prompt)
  assert code == 0, err
  masks = json.loads(out)['masks']
  assert [len(tokens) for tokens in masks] == [3, 3]
  for tokens in masks:
    probabilities = [token['probability'] for token in tokens]
    assert probabilities == sorted(probabilities, reverse=True)
  code, _, err = t2x('generate', folder / 'pruned', '--prompt', 'the cat')
  assert (code, err.count('\n')) == (2, 1)
  assert 'the prompt has no mask to fill: write <mask>' in err


def test_layers_with_different_numbers_of_heads_cannot_be_exported(folder, t2x):
  code, _, err = t2x('convert', 'export', folder / 'pruned', '--to', folder / 'exported')
  assert code == 2
  assert 'its layers have different numbers of heads (t2x prune), which no family supports' in err


@pytest.mark.nightly
def test_a_pruned_run_is_trained_further(folder, t2x):
  start = ('--gin.Experiment.init_from=@InitFrom()', f'--gin.InitFrom.run={folder / "pruned"}')
  out = folder / 'tuned'
  code, _, err = t2x('train', folder / 'pruned' / 'config.gin', '--out', out, *start)
  assert code == 0, err
  assert '0 new' in (out / 'init_from.txt').read_text()


def test_bad_requests_are_refused(folder, t2x):
  for arguments, message in (
    (('--heads', 7, '--out', folder / 'x'), 'the model has 8 heads, of which at most 6'),
    (('--heads', 1, '--out', folder / 'run'), 'already exists: remove it or use another --out'),
    (('--heads', 1, '--out', folder / 'x', '--split', 'dev'), "no split 'dev'"),
    (
      (
        '--heads',
        1,
        '--out',
        folder / 'x',
        '--gin.Encoder.encoding=@ALiBi',
        '--gin.ALiBi.num_heads=4',
      ),
      'heads of this model cannot be pruned',
    ),
  ):
    code, _, err = t2x('prune', folder / 'run', '--rows', 8, *arguments)
    assert code == 2 and message in err, err
    assert not (folder / 'x').exists()
