"""Logits processors: modify the scores of the next token given the history of the sequence.

A strategy applies its `processors` in order, before it chooses a token:
`Beam(processors=(NoRepeatNGram(3), MinLength(20)))`. Hugging Face's `generate` uses the order of this
file, with suppression last. Temperature, top-k and nucleus do not depend on the history and follow in
`Sampling`.

As in Hugging Face, scores are the model's logits in greedy decoding and sampling, and
log-probabilities in beam search, which are not normalised again. A penalty that depends on the sign of
a score therefore has different effects in the two.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Natural, NonEmpty, ScoreScale, Size, make_tuples

__all__ = [
  'ForceFirst',
  'ForceLast',
  'GeneratedOnly',
  'History',
  'MinLength',
  'MinNewTokens',
  'NoRepeatNGram',
  'Processor',
  'RepetitionPenalty',
  'SuppressFirst',
  'SuppressTokens',
]

Scores = Float[Array, 'batch copies vocab']


@dataclasses.dataclass(frozen=True)
class History:
  """The prompt and the generated tokens of each sequence.

  Prompts are padded on the left, so that generated tokens start at the same index in all rows. The
  prompt of an encoder-decoder is the start token of the target.

  Attributes:
    tokens: token ids; only those in `mask` are valid.
    mask: True for prompt and generated tokens, False for padding and future tokens. One contiguous
      range per row, up to `end`.
    prompt_width: width of the prompts with padding; the index of the first generated token.
    step: number of generated tokens.
    limits: maximum number of generated tokens.
    eos_ids: the end tokens; may be empty.
  """

  tokens: Int[Array, 'batch copies length']
  mask: Bool[Array, 'batch length']
  prompt_width: int
  step: Int[Array, '']
  limits: Int[Array, ' batch']
  eos_ids: tuple[int, ...]

  @property
  def end(self) -> Int[Array, '']:
    """The index of the next token."""
    return self.prompt_width + self.step


class Processor(abc.ABC):
  """Maps scores of the next token to scores; -inf excludes a token.

  Subclasses are frozen dataclasses because jit treats them as static. `step` is traced, so shapes
  must not depend on it. In beam search scores must stay at most 0: the stopping
  bound of the search requires it.
  """

  @abc.abstractmethod
  def __call__(self, scores: Scores, history: History) -> Scores:
    """Returns the float32 scores of each sequence's next token."""


@dataclasses.dataclass(frozen=True)
class GeneratedOnly(Processor):
  """Applies another processor to the generated tokens only, without the prompt."""

  processor: Processor

  def __call__(self, scores, history):
    generated = jnp.arange(history.mask.shape[-1]) >= history.prompt_width
    return self.processor(scores, dataclasses.replace(history, mask=history.mask & generated))


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(Processor):
  """Penalises tokens of the history: CTRL (Keskar et al. 2019, https://arxiv.org/abs/1909.05858),
  section 4.1.

  Positive scores are divided by `penalty`, negative scores multiplied by it. The paper divides both,
  which would make tokens of negative score more likely. Values above 1 discourage repetition, below 1
  encourage it. As in Hugging Face, the history includes the prompt without padding. The paper
  penalises only generated tokens: `GeneratedOnly(RepetitionPenalty(1.2))`.
  """

  penalty: ScoreScale

  def __post_init__(self):
    if not self.penalty > 0:
      raise UserError(
        f'RepetitionPenalty.penalty = {self.penalty} must be greater than 0; 1 has no effect'
      )

  def __call__(self, scores, history):
    repeated = _token_mask(history.tokens, history.mask[:, None], scores.shape[-1])
    penalised = jnp.where(scores < 0, scores * self.penalty, scores / self.penalty)
    return jnp.where(repeated, penalised, scores)


@dataclasses.dataclass(frozen=True)
class NoRepeatNGram(Processor):
  """Prevents repeated n-grams of `size` tokens (Paulus et al. 2017,
  https://arxiv.org/abs/1705.04304, section 2.5, with trigrams).

  As in Hugging Face, n-grams may start in the prompt, unless wrapped in `GeneratedOnly`. Padding is
  never part of an n-gram. In Hugging Face it is, which only matters for `size` 1: it excludes the
  padding token if a prompt of the batch is padded.
  """

  size: Size

  def __post_init__(self):
    if self.size < 1:
      raise UserError(f'NoRepeatNGram.size = {self.size} must be at least 1')

  def __call__(self, scores, history):
    before = self.size - 1
    windows = history.mask.shape[-1] - before
    if windows < 1:
      return scores
    # n-grams that lie entirely in the history; none while it is shorter than `size`.
    complete = history.mask[:, :windows] & history.mask[:, before:]
    repeats = jnp.broadcast_to(complete[:, None], (*scores.shape[:2], windows))
    suffix = jax.lax.dynamic_slice_in_dim(history.tokens, history.end - before, before, axis=-1)
    for i in range(before):
      repeats &= history.tokens[..., i : i + windows] == suffix[..., i : i + 1]
    banned = _token_mask(history.tokens[..., before:], repeats, scores.shape[-1])
    return jnp.where(banned, -jnp.inf, scores)


@dataclasses.dataclass(frozen=True)
class MinLength(Processor):
  """Excludes end tokens from sequences of fewer than `length` tokens, including the prompt.

  Equal to Hugging Face's `min_length`, except that the latter also counts the padding of prompts.
  """

  length: Count

  def __call__(self, scores, history):
    short = history.mask.sum(axis=-1) < self.length
    return _suppress(scores, history.eos_ids, short[:, None, None])


@dataclasses.dataclass(frozen=True)
class MinNewTokens(Processor):
  """Excludes end tokens until `count` tokens are generated: Hugging Face's `min_new_tokens`.

  For an encoder-decoder, `MinLength(count + 1)` is equal because it counts the start token.
  """

  count: Count

  def __call__(self, scores, history):
    return _suppress(scores, history.eos_ids, history.step < self.count)


@dataclasses.dataclass(frozen=True)
class ForceFirst(Processor):
  """Forces the first generated tokens, such as the target language or BART's `<s>`.

  With one token, equal to Hugging Face's `forced_bos_token_id`, except that the latter has no effect
  on prompts of more than one token. A forced token has score 0, which does not change the score of a
  hypothesis.
  """

  tokens: Annotated[Sequence[Natural], NonEmpty]

  def __post_init__(self):
    make_tuples(self, 'tokens')
    if not self.tokens:
      raise UserError('ForceFirst.tokens must not be empty: remove ForceFirst instead')

  def __call__(self, scores, history):
    _check_ids('ForceFirst', self.tokens, scores)
    token = jnp.asarray(self.tokens)[jnp.minimum(history.step, len(self.tokens) - 1)]
    return jnp.where(history.step < len(self.tokens), _force(scores, token), scores)


@dataclasses.dataclass(frozen=True)
class ForceLast(Processor):
  """Forces an end token at the length limit, with score 0: Hugging Face's `forced_eos_token_id`."""

  def __call__(self, scores, history):
    if not history.eos_ids:
      raise UserError(
        'ForceLast requires an end token, but eos_id = None: set eos_id or remove ForceLast'
      )
    last = (history.step == history.limits - 1)[:, None, None]
    return jnp.where(last, _force(scores, history.eos_ids), scores)


@dataclasses.dataclass(frozen=True)
class SuppressTokens(Processor):
  """Excludes tokens: Hugging Face's `suppress_tokens`, and `bad_words_ids` of one token each."""

  tokens: Annotated[Sequence[Natural], NonEmpty]

  def __post_init__(self):
    make_tuples(self, 'tokens')

  def __call__(self, scores, history):
    _check_ids('SuppressTokens', self.tokens, scores)
    return _suppress(scores, self.tokens)


@dataclasses.dataclass(frozen=True)
class SuppressFirst(Processor):
  """Excludes tokens from the first step, such as an empty transcription: Hugging Face's `begin_suppress_tokens`."""

  tokens: Annotated[Sequence[Natural], NonEmpty]

  def __post_init__(self):
    make_tuples(self, 'tokens')

  def __call__(self, scores, history):
    _check_ids('SuppressFirst', self.tokens, scores)
    return _suppress(scores, self.tokens, history.step == 0)


def _check_ids(name, tokens, scores):
  """Raises UserError for ids outside of the vocabulary."""
  vocab = scores.shape[-1]
  if max(tokens, default=0) >= vocab:
    raise UserError(
      f'{name}.tokens contains {max(tokens)}, but token ids must be from 0 to {vocab - 1}'
    )


def _token_mask(tokens, where, vocab):
  """Returns bool [batch, copies, vocab]: True for ids in `tokens` at positions where `where` is True."""

  def token_mask(tokens, where):
    return jnp.zeros(vocab, bool).at[tokens].max(where)

  return jax.vmap(jax.vmap(token_mask))(tokens, jnp.broadcast_to(where, tokens.shape))


def _suppress(scores, tokens, where=True):
  """Sets the scores of `tokens` to -inf where `where` is True."""
  is_suppressed = jnp.isin(jnp.arange(scores.shape[-1]), jnp.asarray(tokens, jnp.int32))
  return jnp.where(is_suppressed & where, -jnp.inf, scores)


def _force(scores, tokens):
  """Sets the scores of `tokens` to 0 and all others to -inf."""
  is_forced = jnp.isin(jnp.arange(scores.shape[-1]), jnp.asarray(tokens, jnp.int32))
  return jnp.where(is_forced, 0.0, -jnp.inf)
