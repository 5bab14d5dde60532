"""Hugging Face's generation_config.json as a decoding strategy, and the reverse."""

from collections.abc import Mapping
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Bool, Field, Fields, Float, Ids, Int, Many, Only, shown
from t2x.decode.beam import Beam
from t2x.decode.diverse import DiverseBeam
from t2x.decode.penalties import AverageLength
from t2x.decode.processors import (
  ForceFirst,
  ForceLast,
  MinLength,
  MinNewTokens,
  NoRepeatNGram,
  Processor,
  RepetitionPenalty,
  SuppressFirst,
  SuppressTokens,
)
from t2x.decode.sampling import Greedy, Sampling
from t2x.decode.stopping import AtCurrentLength, Stopping, WhenCertain, WhenFull
from t2x.decode.strategy import Strategy

STOPPING: Mapping[Any, Stopping] = {
  False: AtCurrentLength(),
  True: WhenFull(),
  'never': WhenCertain(),
}
# Unsupported settings, with the value that has no effect. The groups of transformers differ from `DiverseBeam`: they do
# not count the tokens that end a hypothesis, and transformers 5 no longer contains them.
UNSUPPORTED = {
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


def _declared(vocab_size: int) -> Mapping[str, Field]:
  token = Int(None, -(2**31), vocab_size - 1)
  return {
    'bad_words_ids': Many([], Many([], token, least=1)),
    'begin_suppress_tokens': Many([], token),
    'do_sample': Bool(False),
    'early_stopping': Only(False, (True, 'never')),
    'eos_token_id': Ids([], vocab_size),
    'forced_bos_token_id': Int(None, 0, vocab_size - 1),
    'forced_eos_token_id': Ids([], vocab_size),
    'length_penalty': Float(1.0, -100.0, 100.0),
    'min_length': Int(0),
    'min_new_tokens': Int(0),
    'no_repeat_ngram_size': Int(0),
    'num_beams': Int(1, 1, 1000),
    'repetition_penalty': Float(1.0, 0.0, 1e6, excluded=0.0),
    'suppress_tokens': Many([], token),
    'temperature': Float(1.0, 0.0, 1e6),
    'top_k': Int(50),
    'top_p': Float(1.0, 0.0, 1.0),
  }


def strategy_of(
  config: Mapping[str, Any],
  *,
  eos_id: int | None = None,
  vocab_size: int = 2**31,
  where: str = 'generation_config.json',
) -> tuple[Strategy, list[str]]:
  """Returns the strategy equal to transformers' `generate`.

  Args:
    config: fields of generation_config.json; absent or null fields have their defaults.
    eos_id: the end token of the tokenizer; the strategy sets `eos_ids` only if they differ from it.
    vocab_size: exclusive upper bound of token ids.
    where: the file, for error messages.

  Returns:
    The strategy, and the unsupported settings as `name = value`.

  Raises:
    UserError: a field has a wrong type or is out of range.
  """
  values = {name: value for name, value in config.items() if value is not None}
  fields = Fields(values, _declared(vocab_size), where)
  unsupported = [
    f'{name} = {shown(values[name])}'
    for name, neutral in UNSUPPORTED.items()
    if values.get(name, neutral) != neutral
  ]
  processors, more = _processors(fields)
  ends = fields['eos_token_id']
  more_ends = len(ends) > 1 or (eos_id is not None and ends not in ((), (eos_id,)))
  common: dict[str, Any] = {'processors': processors, 'eos_ids': ends if more_ends else ()}
  try:
    if fields['num_beams'] > 1:
      if fields['do_sample']:
        more.append('do_sample = True in a beam search')
      penalty = AverageLength(fields['length_penalty'])
      stopping = STOPPING[fields['early_stopping']]
      return Beam(fields['num_beams'], penalty, stopping, **common), unsupported + more
    if not fields['do_sample']:
      return Greedy(**common), unsupported + more
    top_p = fields['top_p']
    sampling = Sampling(
      temperature=fields['temperature'],
      top_k=fields['top_k'] or None,
      top_p=None if top_p == 1.0 else top_p,
      **common,
    )
    return sampling, unsupported + more
  except UserError as error:
    raise UserError(f'{where}: {error}') from error


def _processors(fields: Fields) -> tuple[list[Processor], list[str]]:
  """Returns the processors in the order of transformers, and the unsupported settings."""
  processors: list[Processor] = []
  unsupported = []
  if (penalty := fields['repetition_penalty']) != 1.0:
    processors.append(RepetitionPenalty(penalty))
  if size := fields['no_repeat_ngram_size']:
    processors.append(NoRepeatNGram(size))
  if length := fields['min_length']:
    processors.append(MinLength(length))
  if count := fields['min_new_tokens']:
    processors.append(MinNewTokens(count))
  if (first := fields['forced_bos_token_id']) is not None:
    processors.append(ForceFirst((first,)))
  if begin := fields['begin_suppress_tokens']:
    if first is not None:
      unsupported.append(f'begin_suppress_tokens = {list(begin)} beside forced_bos_token_id')
    else:
      processors.append(SuppressFirst(begin))
  ends, last = fields['eos_token_id'], fields['forced_eos_token_id']
  if last:
    processors.append(ForceLast())
    if ends and last != ends:
      unsupported.append(
        f'forced_eos_token_id = {list(last)} instead of eos_token_id = {list(ends)}'
      )
  words = fields['bad_words_ids']
  long_words = [word for word in words if len(word) > 1]
  if long_words:
    unsupported.append(f'bad_words_ids = {shown(long_words)}, longer than one token')
  short = [word[0] for word in words if len(word) == 1 and word[0] not in ends]
  if suppressed := (*short, *fields['suppress_tokens']):
    processors.append(SuppressTokens(suppressed))
  return processors, unsupported


def fields_of(strategy: Strategy) -> tuple[dict[str, Any], list[str]]:
  """Returns the fields of generation_config.json that give transformers' `generate` this strategy.

  Args:
    strategy: the strategy; its end tokens are not in the fields.

  Returns:
    The fields, and the settings that have none, as text.
  """
  missing = [str(processor) for processor in strategy.processors]
  if isinstance(strategy, Sampling):
    # Without top_k, transformers keeps the 50 likeliest tokens.
    fields = {'do_sample': True, 'temperature': strategy.temperature, 'top_k': strategy.top_k or 0}
    return fields | ({'top_p': strategy.top_p} if strategy.top_p else {}), missing
  if isinstance(strategy, Beam):
    fields = {'do_sample': False, 'num_beams': strategy.width}
    if isinstance(strategy.length_penalty, AverageLength):
      fields['length_penalty'] = strategy.length_penalty.power
    else:
      missing.append(str(strategy.length_penalty))
    if isinstance(strategy, DiverseBeam):
      missing.append(f'num_groups = {strategy.num_groups}, strength = {strategy.strength}')
    stopping = [name for name, value in STOPPING.items() if value == strategy.stopping]
    return fields | {'early_stopping': stopping[0]} if stopping else fields, missing
  return {'do_sample': False}, missing
