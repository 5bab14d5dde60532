"""A run whose last evaluation reads its text in longer rows too."""

import json
import math

import pytest
from PIL import Image

from t2x.base.errors import UserError
from t2x.cli.eval import write_pictures

LENGTHS = """
Experiment.evaluations = {'2x': @twice/Losses(), 'masked': @masked/Losses()}
Losses.every = 0
twice/Losses.task = @twice/CausalLM()
masked/Losses:
  task = @MaskedLM()
  split = 'train'
twice/CausalLM.length = 128
MaskedLM:
  source = @TextFiles()
  tokenizer = @Bytes()
  length = 32
"""


@pytest.fixture
def config(experiment):
  return experiment('causal_lm', LENGTHS)


def test_only_the_last_step_has_the_metrics_of_further_tasks(config, t2x, metrics, tmp_path):
  out = tmp_path / 'run'
  code, _, told = t2x('train', config, '--out', out)
  assert code == 0, told
  first, last = (line for line in metrics(out) if line['split'] == 'eval')
  assert not any('/' in name for name in first)
  further = {name for name in last if '/' in name}
  own = {'loss', 'accuracy', 'perplexity', 'bits_per_byte'}
  assert further == {f'2x/{name}' for name in (*own, 'eval_tokens')} | {
    f'masked/{name}' for name in ('loss', 'masked_accuracy', 'perplexity', 'eval_tokens')
  }
  assert last['2x/loss'] != last['loss']
  # Evaluated on its own, at that length, with the same model and tokenizer: the same numbers.
  code, told, _ = t2x('eval', out, '--json', '--checkpoint', 'last', '--gin.CausalLM.length=128')
  assert code == 0
  alone = json.loads(told)
  for name in own:
    assert math.isclose(alone[name], last[f'2x/{name}'], rel_tol=1e-6), name
  # `t2x eval` reads the splits of the evaluators, unless `--split` has another.
  assert math.isclose(alone['masked/loss'], last['masked/loss'], rel_tol=1e-6)
  code, told, _ = t2x('eval', out, '--json', '--split', 'validation')
  assert json.loads(told)['masked/eval_tokens'] != last['masked/eval_tokens']
  maps = "{'2x': @twice/Losses(), 'masked': @masked/Losses(), 'maps': @AttentionMaps()}"
  drawn = f'--gin.Experiment.evaluations={maps}', "--gin.AttentionMaps.texts=['ab']"
  code, _, told = t2x('eval', out, '--limit', 1, '--pictures', tmp_path / 'pictures', *drawn)
  assert code == 0, told
  paths = sorted((tmp_path / 'pictures').iterdir())
  assert paths[0].name == 'maps_attention_layer_00.png'
  assert all(Image.open(path).mode == 'RGB' for path in paths)


def test_pictures_of_a_run_whose_evaluators_draw_none_are_refused(tmp_path):
  with pytest.raises(UserError, match=r'--pictures has no effect: no evaluator'):
    write_pictures(tmp_path, {})


def test_a_model_that_cannot_serve_a_length_is_refused_before_it_trains(experiment, t2x, tmp_path):
  positions = """
  Decoder.encoding = @LearnedPositions
  LearnedPositions.max_length = 64
  """.replace('\n  ', '\n')
  config = experiment('causal_lm', LENGTHS + positions)
  for command in (['check', config], ['train', config, '--out', tmp_path / 'run']):
    code, _, told = t2x(*command)
    assert code == 2
    assert "Experiment.evaluations['2x']: a sequence of 128 tokens is longer" in told
