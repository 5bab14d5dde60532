"""Scores of captions with several references, against sacrebleu, and by rules."""

import numpy as np
import pytest
import sacrebleu

from t2x.base.errors import UserError
from t2x.domains.captions import CaptionScores
from t2x.samples import DrawnScenes, scene_is_right

EXAMPLES = DrawnScenes().load('test')[:4]


def score(outputs, **settings):
  return CaptionScores(**settings)._score(EXAMPLES, outputs)


def test_every_reference_counts_and_the_rule_reads_mixed_sentences():
  outputs = [example['captions'][place] for place, example in enumerate(EXAMPLES)]
  result = score(outputs, rules={'facts': scene_is_right})
  assert (result.metrics['exact_match'], result.metrics['facts']) == (1.0, 1.0)
  assert result.metrics['bleu'] == pytest.approx(100)
  outputs[0] = outputs[0].replace('a ', 'the ', 1)  # right, but no reference
  outputs[1] = EXAMPLES[2]['captions'][0]
  result = score(outputs, rules={'facts': scene_is_right})
  assert (result.metrics['exact_match'], result.metrics['facts']) == (0.5, 0.75)
  np.testing.assert_array_equal(result.examples['facts'], [1, 0, 1, 1])
  streams = [list(stream) for stream in zip(*(e['captions'] for e in EXAMPLES), strict=True)]
  assert result.metrics['bleu'] == sacrebleu.corpus_bleu(outputs, streams).score < 100
  assert 'nrefs:12' in result.metrics['bleu_signature']


def test_settings_that_do_not_fit_are_refused():
  outputs = ['a'] * 4
  with pytest.raises(UserError, match="references = 'texts': the examples have no list"):
    score(outputs, references='texts')
  with pytest.raises(UserError, match=r"rules\['bleu'\]: is a metric"):
    score(outputs, rules={'bleu': scene_is_right})
