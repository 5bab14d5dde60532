"""Logits processors: what changes the scores of the next token in view of what stands before it.

A strategy applies its `processors` in order, before it chooses: `Beam(processors=(NoRepeatNGram(3),
MinLength(20)))`. Of Hugging Face's `generate` the order is that in which they stand in this file,
suppression last; temperature, top-k and nucleus, which look at no history, follow in `Sampling`.

The scores are the model's logits in greedy decoding and sampling, and log-probabilities in beam
search, which are not normalised again: both as in Hugging Face. A penalty that looks at the sign
of a score therefore does not mean the same in both.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.errors import UserError
from t2x.ranges import Count, Natural, NonEmpty, Positive, Size

Scores = Float[Array, 'batch copies vocab']


@dataclasses.dataclass(frozen=True)
class History:
  """What stands before the next token of each sequence: its prompt, then what was generated.

  Prompts are moved to the right, so that both stand side by side in all rows. The token that starts
  the target of an encoder-decoder is its prompt.

  Attributes:
    tokens: ids; only those in `known` mean anything.
    known: which tokens stand: not the padding before a prompt, nor what is still to come. One
      stretch a row, up to `end`.
    prompt_width: where generated tokens begin; the prompts' width with their padding.
    step: how many were generated.
    limits: the most that may be generated.
    eos_ids: the tokens that end a sequence, if any.
  """

  tokens: Int[Array, 'batch copies length']
  known: Bool[Array, 'batch length']
  prompt_width: int
  step: Int[Array, '']
  limits: Int[Array, ' batch']
  eos_ids: tuple[int, ...]

  @property
  def end(self) -> Int[Array, '']:
    """Where the next token will stand."""
    return self.prompt_width + self.step


class Processor(abc.ABC):
  """Scores of the next token -> other scores; -inf rules a token out.

  Subclasses are frozen dataclasses (compiled code depends on them), and work on arrays of fixed
  shapes: `step` is traced. In beam search no score may rise above 0, or the bound by which the
  search knows that it is done does not hold.
  """

  @abc.abstractmethod
  def __call__(self, scores: Scores, history: History) -> Scores:
    """The scores, in float32, of each sequence's next token."""


@dataclasses.dataclass(frozen=True)
class GeneratedOnly(Processor):
  """Hides the prompt from another processor."""

  processor: Processor

  def __call__(self, scores, history):
    generated = jnp.arange(history.known.shape[-1]) >= history.prompt_width
    return self.processor(scores, dataclasses.replace(history, known=history.known & generated))


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(Processor):
  """Makes tokens of the history less likely: CTRL (Keskar et al. 2019,
  https://arxiv.org/abs/1909.05858), section 4.1.

  A positive score is divided by `penalty`, a negative one multiplied with it (their formula divides
  both, which would make a negative one more likely). Above 1 discourages, below 1 encourages. As in
  Hugging Face the prompt counts, and its padding does not; the paper counts what was generated:
  `GeneratedOnly(RepetitionPenalty(1.2))`.
  """

  penalty: Positive

  def __post_init__(self):
    if not self.penalty > 0:
      raise UserError(f'RepetitionPenalty.penalty = {self.penalty} is not above 0; 1 changes none')

  def __call__(self, scores, history):
    seen = _among(history.tokens, history.known[:, None], scores.shape[-1])
    penalised = jnp.where(scores < 0, scores * self.penalty, scores / self.penalty)
    return jnp.where(seen, penalised, scores)


@dataclasses.dataclass(frozen=True)
class NoRepeatNGram(Processor):
  """No `size` tokens in a row stand twice in a sequence (Paulus et al. 2017,
  https://arxiv.org/abs/1705.04304, section 2.5, with trigrams).

  As in Hugging Face n-grams of the prompt, and across its end, count; not with `GeneratedOnly`.
  Padding is never part of one; there it is, which shows with `size` 1 alone: it rules out the
  padding token wherever a prompt of the batch is padded.
  """

  size: Size

  def __post_init__(self):
    if self.size < 1:
      raise UserError(f'NoRepeatNGram.size = {self.size} is below 1')

  def __call__(self, scores, history):
    before = self.size - 1
    windows = history.known.shape[-1] - before
    if windows < 1:
      return scores
    # All within the history. While that is shorter than `size` there are none.
    known = history.known[:, :windows] & history.known[:, before:]
    repeats = jnp.broadcast_to(known[:, None], (*scores.shape[:2], windows))
    suffix = jax.lax.dynamic_slice_in_dim(history.tokens, history.end - before, before, axis=-1)
    for i in range(before):
      repeats &= history.tokens[..., i : i + windows] == suffix[..., i : i + 1]
    banned = _among(history.tokens[..., before:], repeats, scores.shape[-1])
    return jnp.where(banned, -jnp.inf, scores)


@dataclasses.dataclass(frozen=True)
class MinLength(Processor):
  """No sequence ends with fewer than `length` tokens, those of its prompt included.

  Hugging Face's `min_length`, which counts the padding of a prompt as well.
  """

  length: Count

  def __call__(self, scores, history):
    short = history.known.sum(axis=-1) < self.length
    return _without(scores, history.eos_ids, short[:, None, None])


@dataclasses.dataclass(frozen=True)
class MinNewTokens(Processor):
  """At least `count` tokens are generated before one that ends the sequence: Hugging Face's
  `min_new_tokens`. For an encoder-decoder `MinLength` is one more, for the token that starts it."""

  count: Count

  def __call__(self, scores, history):
    return _without(scores, history.eos_ids, history.step < self.count)


@dataclasses.dataclass(frozen=True)
class ForceFirst(Processor):
  """The first tokens generated are these: the language to translate to, BART's `<s>`.

  Of one token Hugging Face's `forced_bos_token_id`, which does nothing to a prompt of more than one
  token. A forced token has score 0 and costs a hypothesis nothing.
  """

  tokens: Annotated[Sequence[Natural], NonEmpty]

  def __post_init__(self):
    object.__setattr__(self, 'tokens', tuple(self.tokens))
    if not self.tokens:
      raise UserError('ForceFirst.tokens is empty: leave ForceFirst out')

  def __call__(self, scores, history):
    _check_known('ForceFirst', self.tokens, scores)
    token = jnp.asarray(self.tokens)[jnp.minimum(history.step, len(self.tokens) - 1)]
    return jnp.where(history.step < len(self.tokens), _only(scores, token), scores)


@dataclasses.dataclass(frozen=True)
class ForceLast(Processor):
  """The last token that a limit leaves room for is an end token: Hugging Face's
  `forced_eos_token_id`. It has score 0, as with ForceFirst."""

  def __call__(self, scores, history):
    if not history.eos_ids:
      raise UserError('ForceLast forces the end token, and generate was given eos_id = None')
    last = (history.step == history.limits - 1)[:, None, None]
    return jnp.where(last, _only(scores, history.eos_ids), scores)


@dataclasses.dataclass(frozen=True)
class SuppressTokens(Processor):
  """These tokens are never generated: Hugging Face's `suppress_tokens`, and its `bad_words_ids` of
  one token each."""

  tokens: Annotated[Sequence[Natural], NonEmpty]

  def __post_init__(self):
    object.__setattr__(self, 'tokens', tuple(self.tokens))

  def __call__(self, scores, history):
    _check_known('SuppressTokens', self.tokens, scores)
    return _without(scores, self.tokens)


def _check_known(name, tokens, scores):
  """Refuses ids that the model has no scores for."""
  vocab = scores.shape[-1]
  if max(tokens, default=0) >= vocab:
    raise UserError(
      f'{name}.tokens holds {max(tokens)}, but the model has the ids 0 to {vocab - 1}'
    )


def _among(tokens, where, vocab):
  """Bool [batch, copies, vocab]: what is among `tokens`, of those alone that `where` names."""

  def among(tokens, where):
    return jnp.zeros(vocab, bool).at[tokens].max(where)

  return jax.vmap(jax.vmap(among))(tokens, jnp.broadcast_to(where, tokens.shape))


def _without(scores, tokens, where=True):
  """-inf for `tokens`, where told."""
  named = jnp.isin(jnp.arange(scores.shape[-1]), jnp.asarray(tokens, jnp.int32))
  return jnp.where(named & where, -jnp.inf, scores)


def _only(scores, tokens):
  """0 for `tokens` and -inf for all others."""
  named = jnp.isin(jnp.arange(scores.shape[-1]), jnp.asarray(tokens, jnp.int32))
  return jnp.where(named, 0.0, -jnp.inf)
