"""The interface of decoding strategies, which choose the next token from logits.

The generation loop (`t2x.decode.generate`) holds the model and its cache; the strategy holds the
generated tokens.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import make_tuples
from t2x.decode.processors import History, Processor

__all__ = ['Generated', 'Request', 'Strategy']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Generated:
  """The generated sequences, without the prompts.

  Log-probabilities are the log_softmax of the model's logits in float32, before any processor,
  temperature or filter.

  Attributes:
    tokens: int32 ids, including the end token, followed by `pad_id`.
    lengths: number of generated tokens, including the end token. 0 for missing hypotheses of beam
      search, whose score is -inf.
    log_probs: log-probability (nats) of each token given the previous tokens; 0 for padding.
    sum_log_probs: log-probability of the sequence, the sum of `log_probs`.
    scores: ranking of the strategy. Beam: sum of the processed log-probabilities divided by the
      length penalty, in descending order. Otherwise `sum_log_probs`, unsorted.
  """

  tokens: Int[Array, 'batch returned length']
  lengths: Int[Array, 'batch returned']
  log_probs: Float[Array, 'batch returned length']
  sum_log_probs: Float[Array, 'batch returned']
  scores: Float[Array, 'batch returned']


@dataclasses.dataclass(frozen=True)
class Request:
  """The inputs of a strategy.

  Attributes:
    prompts: token ids, padded on the left.
    prompt_lengths: number of tokens of each prompt.
    limits: maximum number of generated tokens of each prompt, from 1 to `max_new_tokens`.
    key: the random key; None for deterministic strategies.
    num_return: number of sequences per prompt.
    max_new_tokens: width of the generated tokens.
    eos_ids: the end tokens; empty: sequences end only at `limits`.
    pad_id: fills the sequences after their end.
    allowed: the tokens that may be chosen at each step, among the first ids; None: all.
  """

  prompts: Int[Array, 'batch prompt']
  prompt_lengths: Int[Array, ' batch']
  limits: Int[Array, ' batch']
  key: Array | None
  num_return: int
  max_new_tokens: int
  eos_ids: tuple[int, ...]
  pad_id: int
  allowed: Bool[Array, 'batch max_new_tokens ids'] | None = None

  def ends(self, tokens: Int[Array, '*shape']) -> Bool[Array, '*shape']:
    """Returns which tokens are end tokens."""
    return jnp.isin(tokens, jnp.asarray(self.eos_ids, jnp.int32))

  def history(self, generated: Int[Array, 'batch copies length'], step: Int[Array, '']) -> History:
    """Concatenates the prompts and the first `step` generated tokens."""
    width = self.prompts.shape[1]
    prompts = jnp.broadcast_to(self.prompts[:, None], (*generated.shape[:2], width))
    indices = jnp.arange(width + generated.shape[-1])
    mask = (indices >= width - self.prompt_lengths[:, None]) & (indices < width + step)
    tokens = jnp.concatenate([prompts, generated], axis=-1)
    return History(tokens, mask, width, step, self.limits, self.eos_ids)


# What a strategy carries from token to token.
State = TypeVar('State')


@dataclasses.dataclass(frozen=True)
class Strategy(abc.ABC, Generic[State]):
  """Base of decoding strategies. Subclasses are frozen dataclasses because jit treats them as static.

  The state is a pytree defined by the strategy, with at least
    `last`: int32 [batch, copies], the next tokens to feed to the model;
    `live`: bool [batch, copies], the sequences that can still change the result.

  Attributes:
    processors: applied in order to the scores of the next token.
    eos_ids: the end tokens; empty: the `eos_id` argument of `generate`.
  """

  processors: Sequence[Processor] = dataclasses.field(default=(), kw_only=True)
  eos_ids: Sequence[int] = dataclasses.field(default=(), kw_only=True)

  # Whether the strategy requires a random key.
  random: ClassVar[bool] = False

  def __post_init__(self):
    make_tuples(self, 'processors', 'eos_ids')
    if any(token < 0 for token in self.eos_ids):
      raise UserError(
        f'{type(self).__name__}.eos_ids = {self.eos_ids} must not contain negative ids'
      )

  def process(
    self,
    scores: Float[Array, 'batch copies vocab'],
    generated: Int[Array, 'batch copies length'],
    step: Int[Array, ''],
    request: Request,
  ) -> Float[Array, 'batch copies vocab']:
    """Applies the processors to the scores of generated token `step`, and excludes tokens that are not allowed."""
    for processor in self.processors:
      scores = processor(scores, request.history(generated, step))
    if request.allowed is None:
      return scores
    allowed = request.allowed[:, step, None]
    beyond = scores.shape[-1] - allowed.shape[-1]
    return jnp.where(jnp.pad(allowed, ((0, 0), (0, 0), (0, beyond))), scores, -jnp.inf)

  def copies(self, num_return: int) -> int:
    """The number of parallel sequences per prompt that returning `num_return` sequences requires."""
    if num_return != 1:
      raise UserError(
        f'{type(self).__name__} returns one sequence per prompt, not num_return = {num_return}: '
        'use Sampling or Beam'
      )
    return 1

  @abc.abstractmethod
  def start(self, request: Request) -> State:
    """Returns the state before the first token."""

  @abc.abstractmethod
  def advance(
    self,
    state: State,
    logits: Float[Array, 'batch copies vocab'],
    step: Int[Array, ''],
    request: Request,
  ) -> tuple[State, Int[Array, 'batch copies'] | None]:
    """Chooses generated token number `step`.

    Returns:
      The new state, and the index of the copy that each sequence extends, to reorder the cache; None
      if each extends itself.
    """

  @abc.abstractmethod
  def finish(self, state: State, request: Request) -> Generated:
    """Returns the `num_return` sequences of each prompt."""
