"""The flags of `t2x generate` say how tokens are chosen, over what the task says."""

import dataclasses
import types

import pytest

from t2x import decode
from t2x.base.errors import UserError
from t2x.cli import parser
from t2x.cli.generate import decoding_strategy
from t2x.experiments import read_config

TRIGRAMS, LANGUAGE = decode.NoRepeatNGram(3), decode.ForceFirst([7])
OWN = decode.Beam(5, processors=[TRIGRAMS, LANGUAGE])
KEPT = {'processors': (TRIGRAMS, LANGUAGE)}


def strategy(flags, own=OWN):
  task = types.SimpleNamespace(default_strategy=own)
  return decoding_strategy(parser().parse_args(['generate', 'run', *flags.split()]), task)


@pytest.mark.parametrize(
  ('flags', 'expected'),
  [
    ('', OWN),
    ('--greedy', decode.Greedy(**KEPT)),
    ('--top-k 3', decode.Sampling(top_k=3, **KEPT)),
    ('--beam 2', decode.Beam(2, **KEPT)),
    ('--beam 2 --length-penalty 1', decode.Beam(2, decode.GNMT(1.0), **KEPT)),
    ('--beam 2 --average-length 2', decode.Beam(2, decode.AverageLength(2.0), **KEPT)),
    ('--stop full', decode.Beam(5, stopping=decode.WhenFull(), **KEPT)),
    (
      '--suppress 6 --suppress 9',
      dataclasses.replace(OWN, processors=(*OWN.processors, decode.SuppressTokens([6, 9]))),
    ),
    (
      '--greedy --no-repeat-ngram 2 --repetition-penalty 1.5 --min-new-tokens 4 --suppress 6',
      decode.Greedy(
        processors=[
          LANGUAGE,
          decode.RepetitionPenalty(1.5),
          decode.NoRepeatNGram(2),
          decode.MinNewTokens(4),
          decode.SuppressTokens([6]),
        ]
      ),
    ),
  ],
)
def test_flags_lie_over_the_tasks_strategy(flags, expected):
  assert strategy(flags) == expected


def test_options_keep_the_other_settings_of_the_tasks_strategy():
  penalty, stopping = decode.AverageLength(2.0), decode.WhenFull()
  assert strategy('--beam 2', decode.Beam(5, penalty, stopping)) == decode.Beam(
    2, penalty, stopping
  )
  own = decode.Sampling(0.5, top_k=3, top_p=0.9)
  assert strategy('--temperature 2', own) == decode.Sampling(2.0, top_k=3, top_p=0.9)
  own = decode.Greedy(processors=[decode.SuppressTokens([5, 6])])
  expected = decode.Greedy(processors=[decode.SuppressTokens([5, 6, 7])])
  assert strategy('--suppress 7 --suppress 6', own) == expected


def test_a_flag_of_beam_search_keeps_the_groups_of_the_task():
  own = decode.DiverseBeam(6, num_groups=3, strength=0.2)
  expected = decode.DiverseBeam(6, stopping=decode.WhenFull(), num_groups=3, strength=0.2)
  assert strategy('--stop full', own) == expected


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ('--beam 2 --top-k 3', 'exclude each other'),
    ('--greedy --temperature 0.5', 'exclude each other'),
    ('--stop full', 'need --beam WIDTH'),
  ],
)
def test_flags_that_do_not_go_together_are_errors(flags, message):
  with pytest.raises(UserError, match=message):
    strategy(flags, own=decode.Greedy())


def test_gin_files_and_flags_give_the_same_strategy(tmp_path):
  file = tmp_path / 'x.gin'
  file.write_text("""
Experiment.task = @Translation()
Translation.source = @BabelDates()
Translation.tokenizer = @Bytes()
Translation.source_length = 8
Translation.target_length = 8
Translation.strategy = @Beam()
Beam.length_penalty = @AverageLength()
Beam.stopping = @WhenFull()
Beam.processors = [@NoRepeatNGram(), @ForceFirst()]
NoRepeatNGram.size = 3
ForceFirst.tokens = [7]
""")
  built = read_config([file]).build().task.strategy
  assert built == decode.Beam(
    4, decode.AverageLength(), decode.WhenFull(), processors=(TRIGRAMS, LANGUAGE)
  )
  assert hash(built) == hash(built)
