"""How a model of theirs wants to be decoded: generation_config.json as a strategy of ours."""

from collections.abc import Mapping
from typing import Any

from t2x.decode.beam import Beam
from t2x.decode.penalties import AverageLength
from t2x.decode.processors import (
  ForceFirst,
  ForceLast,
  MinLength,
  MinNewTokens,
  NoRepeatNGram,
  Processor,
  RepetitionPenalty,
  SuppressTokens,
)
from t2x.decode.sampling import Greedy, Sampling
from t2x.decode.stopping import AtCurrentLength, Stopping, WhenCertain, WhenFull
from t2x.decode.strategy import Strategy

__all__ = ['strategy_of']

STOPPING: Mapping[Any, Stopping] = {
  False: AtCurrentLength(),
  True: WhenFull(),
  'never': WhenCertain(),
}
# What is left out when it is absent, None or the value here, which does nothing.
NOT_KNOWN = {
  'begin_suppress_tokens': None,
  'constraints': None,
  'diversity_penalty': 0.0,
  'encoder_no_repeat_ngram_size': 0,
  'encoder_repetition_penalty': 1.0,
  'epsilon_cutoff': 0.0,
  'eta_cutoff': 0.0,
  'exponential_decay_length_penalty': None,
  'force_words_ids': None,
  'forced_decoder_ids': None,
  'guidance_scale': 1.0,
  'min_p': None,
  'num_beam_groups': 1,
  'penalty_alpha': None,
  'prefix_allowed_tokens_fn': None,
  'renormalize_logits': False,
  'sequence_bias': None,
  'top_h': None,
  'typical_p': 1.0,
  'watermarking_config': None,
}


def strategy_of(given: Mapping[str, Any]) -> tuple[Strategy, list[str]]:
  """The strategy that `generate` of transformers follows.

  Args:
    given: fields of generation_config.json; absent ones have their defaults.

  Returns:
    The strategy, and the settings that it leaves out: `name = value`.
  """
  fields = {name: value for name, value in given.items() if value is not None}
  left = [
    f'{name} = {fields[name]}'
    for name, nothing in NOT_KNOWN.items()
    if fields.get(name, nothing) != nothing
  ]
  processors, more = _processors(fields)
  width = fields.get('num_beams', 1)
  if width > 1:
    penalty = AverageLength(float(fields.get('length_penalty', 1.0)))
    stopping = STOPPING[fields.get('early_stopping', False)]
    if fields.get('do_sample'):
      more.append('do_sample = True in a beam search')
    return Beam(width, penalty, stopping, processors=processors), left + more
  if not fields.get('do_sample'):
    return Greedy(processors=processors), left + more
  top_p = fields.get('top_p', 1.0)
  sampling = Sampling(
    temperature=float(fields.get('temperature', 1.0)),
    top_k=fields.get('top_k', 50) or None,
    top_p=None if top_p == 1.0 else float(top_p),
    processors=processors,
  )
  return sampling, left + more


def _processors(fields: Mapping[str, Any]) -> tuple[list[Processor], list[str]]:
  """In the order in which they are applied there, and what is left out."""
  made: list[Processor] = []
  left = []
  if (penalty := fields.get('repetition_penalty', 1.0)) != 1.0:
    made.append(RepetitionPenalty(float(penalty)))
  if size := fields.get('no_repeat_ngram_size', 0):
    made.append(NoRepeatNGram(size))
  if length := fields.get('min_length', 0):
    made.append(MinLength(length))
  if count := fields.get('min_new_tokens', 0):
    made.append(MinNewTokens(count))
  if (first := fields.get('forced_bos_token_id')) is not None:
    made.append(ForceFirst((first,)))
  ends = _ids(fields.get('eos_token_id'))
  if last := _ids(fields.get('forced_eos_token_id')):
    made.append(ForceLast())
    if ends and last != ends:
      left.append(f'forced_eos_token_id = {last} instead of eos_token_id = {ends}')
  words = fields.get('bad_words_ids', [])
  long = [word for word in words if len(word) > 1]
  if long:
    left.append(f'bad_words_ids = {long}, of more than one token')
  short = [word[0] for word in words if len(word) == 1 and word[0] not in ends]
  if suppressed := (*short, *fields.get('suppress_tokens', ())):
    made.append(SuppressTokens(suppressed))
  return made, left


def _ids(given: int | list[int] | None) -> list[int]:
  """Several, one or none."""
  if given is None:
    return []
  return [given] if isinstance(given, int) else list(given)
