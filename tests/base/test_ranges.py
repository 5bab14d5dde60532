"""Ranges of config values: which values `t2x check` refuses, by part."""

import dataclasses
from collections.abc import Sequence

import pytest

from t2x import config as config_lib
from t2x.base.ranges import NonEmpty, Range, make_tuples
from t2x.experiments import read_config


@pytest.fixture(scope='module')
def parts(tmp_path_factory):
  file = tmp_path_factory.mktemp('ranges') / 'empty.gin'
  file.write_text('')
  return read_config([file]).bindings.exact_part


@pytest.mark.parametrize(
  ('name', 'bad', 'good'),
  [
    ('AdamW.b1', 1.5, 0.9),
    ('Distillation.temperature', 1e-300, 2.0),
    ('CausalLM.length', 0, 1),
    ('Samples.num_tokens', 0, 1),
    ('Constant.peak', -1.0, 1e-3),
    ('ImageClassification.image_shape', (28, 0, 1), (28, 28, 1)),
    ('InitFrom.run', '', 'runs/one'),
    ('MaskedLM.rate', float('inf'), 0.15),
    ('MixUp.alpha', 0.0, 0.2),
    ('MultiHeadAttention.num_heads', 0, 1),
    ('PreNorm.dropout_rate', 1.0, 0.0),
    ('ProportionalWeights.temperature', 1e-300, 0.1),
    ('RandAugment.magnitude', 11.0, 10.0),
    ('Resized.height', 0, 4),
    ('RepetitionPenalty.penalty', 1e-300, 1.2),
    ('Rollback.patience', 0, 1),
    ('Sampling.temperature', 1e-300, 1e-6),
    ('Sampling.temperature', 1e300, 1e6),
    ('Sampling.top_p', 0.0, 1.0),
    ('SampledPieces.rate', 2.0, 1.0),
    ('SequenceClassification.labels', [], ['a']),
    ('SinkhornAttention.temperature', 1e-300, 0.75),
    ('Skip.limit', 0, 1),
    ('SpanCorruption.mean_span', 0.5, 1.0),
    ('SpanPrediction.length', -1, 64),
    ('Trainer.num_steps', 0, 1),
    ('Trainer.seed', 2**32, 2**32 - 1),
  ],
)
def test_a_value_outside_its_range_is_a_problem(parts, name, bad, good):
  part, parameter = name.split('.')
  hint = parts(part).parameters[parameter].hint
  assert config_lib.problem(good, hint, parts) is None
  problem = config_lib.problem(bad, hint, parts)
  assert problem is not None and problem.startswith('must ')


@pytest.mark.parametrize(
  ('condition', 'inside', 'outside', 'words'),
  [
    ('0 <= x < 1', (0, 0.5), (-1e-9, 1, float('nan')), 'must be at least 0 and below 1'),
    ('0 < x', (1e-300, 1e300), (0, float('inf')), 'must be above 0'),
    ('1 <= x <= 3', (1, 3), (0, 4, 10**400), 'must be at least 1 and at most 3'),
    ('x', (-1e300,), (float('-inf'), float('nan')), 'must be a finite number'),
  ],
)
def test_the_ends_of_ranges(condition, inside, outside, words):
  made = Range(condition)
  assert all(map(made.holds, inside)) and not any(map(made.holds, outside))
  assert str(made) == words


def test_texts_and_containers_that_must_not_be_empty():
  assert NonEmpty.holds('a') and NonEmpty.holds((1,)) and NonEmpty.holds({'a': 1})
  assert not any(map(NonEmpty.holds, ('', [], {})))


def test_a_condition_of_another_form_is_no_range():
  with pytest.raises(ValueError, match='not a range'):
    Range('x > 0')


@dataclasses.dataclass(frozen=True)
class Choice:
  tokens: Sequence[int]
  others: Sequence[int] = ()

  def __post_init__(self):
    make_tuples(self, 'tokens', 'others')


def test_settings_with_lists_are_equal_to_those_with_tuples():
  assert Choice([1, 2], [3]) == Choice((1, 2), (3,))
  assert {Choice([1, 2])} == {Choice((1, 2))}
