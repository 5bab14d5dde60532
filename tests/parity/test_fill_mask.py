"""Filled masks against the fill-mask pipeline of transformers."""

import importlib
import json

import numpy as np
import pytest

import t2x
from t2x.base.errors import UserError
from t2x.cli import main

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")
hub_folders = importlib.import_module('hub_folders')

PROMPTS = ['The [MASK] barked.', 'A [MASK] in the [MASK] of a town.']
TOP = 4


def test_tokens_and_probabilities_match_the_pipeline(perturbed, tmp_path, capsys):
  folder = hub_folders.make(tmp_path / 'bert', 'bert')
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  torch.manual_seed(0)
  config = transformers.BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=40,
    max_position_embeddings=48,
  )
  model = perturbed(transformers.BertForMaskedLM(config))
  model.save_pretrained(folder)
  pipeline = transformers.pipeline('fill-mask', model=model, tokenizer=tokenizer, top_k=TOP)
  assert main(['convert', 'import', str(folder), '--out', str(tmp_path / 'run')]) == 0
  run = t2x.load(tmp_path / 'run')
  # Both prompts are in one batch, in which the first is padded.
  for prompt, answer in zip(PROMPTS, run.fill_masks(PROMPTS, top_k=TOP), strict=True):
    expected = pipeline(prompt)
    expected = expected if isinstance(expected[0], list) else [expected]
    for mine, theirs in zip(answer['masks'], expected, strict=True):
      assert [token['id'] for token in mine] == [token['token'] for token in theirs]
      np.testing.assert_allclose(
        [token['probability'] for token in mine],
        [token['score'] for token in theirs],
        rtol=1e-4,  # float32 sums in another order.
      )
  first, second = run.fill_masks([PROMPTS[0], PROMPTS[0].replace('[MASK]', '<mask>')])
  assert first['masks'] == second['masks']
  assert len(first['masks'][0]) == 5
  with pytest.raises(UserError, match=r'no mask to fill: write <mask> or \[MASK\]'):
    run.fill_masks('The dog barked.')
  with pytest.raises(UserError, match=r'the model supports 48: shorten it'):
    run.fill_masks('a ' * 60 + '[MASK]')
  capsys.readouterr()
  command = ['generate', str(tmp_path / 'run'), '--prompt', PROMPTS[0], '--top-k', str(TOP)]
  assert main([*command, '--json']) == 0
  assert len(json.loads(capsys.readouterr().out)['masks'][0]) == TOP
  assert main([*command, '--seed', '0']) == 2
  assert '--seed has no effect on a masked language model' in capsys.readouterr().err
