"""What generation_config.json says is what our strategy is, in Python and in gin."""

import pytest

from t2x.commands import load
from t2x.config import gin_of
from t2x.decode import (
  AtCurrentLength,
  AverageLength,
  Beam,
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


@pytest.mark.parametrize(('given', 'strategy'), CASES)
def test_settings_are_a_strategy(given, strategy):
  assert strategy_of(given) == (strategy, [])


@pytest.mark.parametrize(
  ('given', 'told'),
  [
    ({'typical_p': 0.2, 'guidance_scale': 1.0}, 'typical_p = 0.2'),
    ({'num_beams': 2, 'do_sample': True}, 'do_sample = True in a beam search'),
    ({'bad_words_ids': [[3, 4], [5]]}, 'bad_words_ids = [[3, 4]], of more than one token'),
    (
      {'forced_eos_token_id': 2, 'eos_token_id': [2, 3]},
      'forced_eos_token_id = [2] instead of eos_token_id = [2, 3]',
    ),
  ],
)
def test_what_is_left_out_is_told(given, told):
  assert strategy_of(given)[1] == [told]


@pytest.mark.parametrize('strategy', [strategy for _, strategy in CASES], ids=str)
def test_gin_text_gives_the_strategy_back(strategy, tmp_path):
  file = tmp_path / 'x.gin'
  file.write_text(
    'Experiment.task = @CausalLM()\nCausalLM.source = @StandardLibrary()\n'
    'CausalLM.tokenizer = @Bytes()\nCausalLM.length = 8\n' + gin_of('CausalLM.strategy', strategy)
  )
  assert load([file]).build().task.strategy == strategy
