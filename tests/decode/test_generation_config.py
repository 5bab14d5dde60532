"""generation_config.json is converted to the equivalent strategy, in Python and in gin."""

import math

import pytest

from t2x.base.errors import UserError
from t2x.config import gin_of
from t2x.decode import (
  AtCurrentLength,
  AverageLength,
  Beam,
  DiverseBeam,
  ForceFirst,
  ForceLast,
  Greedy,
  MinLength,
  NoRepeatNGram,
  RepetitionPenalty,
  Sampling,
  SuppressTokens,
  WhenFull,
)
from t2x.decode.generation_config import strategy_of
from t2x.experiments import read_config

SUMMARY = {
  'num_beams': 4,
  'length_penalty': 2.0,
  'early_stopping': True,
  'no_repeat_ngram_size': 3,
  'min_length': 56,
  'forced_bos_token_id': 0,
  'forced_eos_token_id': 2,
  'eos_token_id': 2,
  'decoder_start_token_id': 2,
  'max_length': 142,
}
CASES = [
  ({}, Greedy()),
  ({'temperature': 0.5, 'top_k': 9}, Greedy()),
  ({'do_sample': True}, Sampling(top_k=50)),
  (
    {'do_sample': True, 'temperature': 0.5, 'top_k': 0, 'top_p': 0.9, 'repetition_penalty': 1.2},
    Sampling(temperature=0.5, top_p=0.9, processors=[RepetitionPenalty(1.2)]),
  ),
  (
    {'num_beams': 6, 'bad_words_ids': [[58100], [0]], 'eos_token_id': 0, 'forced_eos_token_id': 0},
    Beam(6, AverageLength(), AtCurrentLength(), processors=[ForceLast(), SuppressTokens([58100])]),
  ),
  (
    SUMMARY,
    Beam(
      4,
      AverageLength(2.0),
      WhenFull(),
      processors=[NoRepeatNGram(3), MinLength(56), ForceFirst([0]), ForceLast()],
    ),
  ),
]


@pytest.mark.parametrize('settings', [{}, {'do_sample': True}, {'num_beams': 3}])
@pytest.mark.parametrize(
  ('ends', 'eos_id', 'eos_ids'),
  [
    ([128001, 128009], 128009, (128001, 128009)),
    ([128001, 128009], None, (128001, 128009)),
    (7, 7, ()),
    ([7], 7, ()),
    (7, 8, (7,)),
    (None, 8, ()),
    (-1, 8, ()),
  ],
)
def test_end_tokens_beside_the_tokenizers_are_the_strategys(settings, ends, eos_id, eos_ids):
  strategy, left = strategy_of(settings | {'eos_token_id': ends}, eos_id=eos_id)
  assert (strategy.eos_ids, left) == (eos_ids, [])


@pytest.mark.parametrize(
  ('field', 'values'),
  {
    'bad_words_ids': [[], 3, [3], [['a']], [[]], [[99]]],
    'do_sample': [1, 'yes', []],
    'early_stopping': ['always', 2, []],
    'eos_token_id': ['a', 1.5, True, {}, [[1]], 99, [1, 10**12]],
    'forced_bos_token_id': [[1], 'a', -1, 99],
    'forced_eos_token_id': ['a', [None], 99],
    'length_penalty': [math.nan, math.inf, '1', 1e6],
    'min_length': [-1, 1.5, 10**12, '3'],
    'min_new_tokens': [-1, [], 10**30],
    'no_repeat_ngram_size': [-1, 0.5, {}],
    'num_beams': [0, -1, 10**9, True, '4'],
    'repetition_penalty': [0, -1.0, math.nan, '1.2'],
    'suppress_tokens': [3, ['a'], [99], {}],
    'temperature': [-1, math.nan, math.inf, '1', []],
    'top_k': [-1, 0.5, 10**12, '50'],
    'top_p': [-0.1, 1.1, math.nan, {}],
  }.items(),
)
def test_a_setting_of_another_type_or_range_is_refused_with_its_name(field, values):
  for value in values:
    if value == []:
      continue
    with pytest.raises(UserError, match=f'^the file: {field} = '):
      strategy_of({'do_sample': True, field: value}, vocab_size=50, where='the file')


def test_an_error_of_a_strategy_names_the_file():
  with pytest.raises(
    UserError, match=r'^the file: Sampling.temperature = 0.0 must be from 1e-6 to 1e6'
  ):
    strategy_of({'do_sample': True, 'temperature': 0}, where='the file')


@pytest.mark.parametrize(('config', 'strategy'), CASES)
def test_settings_are_a_strategy(config, strategy):
  assert strategy_of(config) == (strategy, [])


@pytest.mark.parametrize(
  ('config', 'expected'),
  [
    ({'typical_p': 0.2, 'guidance_scale': 1.0}, 'typical_p = 0.2'),
    ({'num_beams': 4, 'num_beam_groups': 2}, 'num_beam_groups = 2'),
    ({'num_beams': 2, 'do_sample': True}, 'do_sample = True in a beam search'),
    ({'bad_words_ids': [[3, 4], [5]]}, 'bad_words_ids = [[3, 4]], longer than one token'),
    (
      {'forced_eos_token_id': 2, 'eos_token_id': [2, 3]},
      'forced_eos_token_id = [2] instead of eos_token_id = [2, 3]',
    ),
  ],
)
def test_omitted_settings_are_reported(config, expected):
  assert strategy_of(config)[1] == [expected]


@pytest.mark.parametrize(
  'strategy',
  [
    *(strategy for _, strategy in CASES),
    Beam(2, eos_ids=[3, 5]),
    DiverseBeam(6, num_groups=3, strength=0.2),
  ],
  ids=str,
)
def test_gin_text_gives_the_strategy_back(strategy, tmp_path):
  file = tmp_path / 'x.gin'
  file.write_text(
    'Experiment.task = @CausalLM()\nCausalLM.source = @StandardLibrary()\n'
    'CausalLM.tokenizer = @Bytes()\nCausalLM.length = 8\n' + gin_of('CausalLM.strategy', strategy)
  )
  assert read_config([file]).build().task.strategy == strategy
