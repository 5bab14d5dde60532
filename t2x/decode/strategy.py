"""What a decoding strategy is: it is given logits step by step and says which token comes next.

The loop around it (`t2x.decode.generate`) owns the model and its cache; a strategy owns what has
been written so far.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.decode.processors import History, Processor
from t2x.errors import UserError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Generated:
  """What was generated, without the prompts.

  Log-probabilities are the model's own: log_softmax of its logits in float32, before any
  processor, temperature or filter.

  Attributes:
    tokens: int32 ids, the end token included, `pad_id` after it.
    lengths: how many of them were generated, the end token included. 0 where beam search found
      fewer hypotheses than were asked for; their score is -inf.
    log_probs: log-probability (nats) of each token given those before it; 0 on the padding.
    sum_log_probs: their sum, the log-probability of the sequence.
    scores: what the strategy ranks by. Beam: the sum, of what its processors made of the
      log-probabilities, under the length penalty, best first. Otherwise `sum_log_probs`, in the
      order drawn.
  """

  tokens: Int[Array, 'batch returned length']
  lengths: Int[Array, 'batch returned']
  log_probs: Float[Array, 'batch returned length']
  sum_log_probs: Float[Array, 'batch returned']
  scores: Float[Array, 'batch returned']


@dataclasses.dataclass(frozen=True)
class Request:
  """What is wanted, as a strategy sees it.

  Attributes:
    prompts: ids, moved to the right: padding stands before them.
    prompt_lengths: tokens of each.
    limits: the most tokens that each prompt may get, from 1 to `max_new_tokens`.
    key: where randomness comes from; None for strategies without.
    num_return: sequences wanted for each prompt.
    max_new_tokens: room for tokens.
    eos_ids: the tokens that end a sequence; empty: only `limits` do.
    pad_id: what fills the room behind a sequence.
  """

  prompts: Int[Array, 'batch prompt']
  prompt_lengths: Int[Array, ' batch']
  limits: Int[Array, ' batch']
  key: Array | None
  num_return: int
  max_new_tokens: int
  eos_ids: tuple[int, ...]
  pad_id: int

  def ends(self, tokens: Int[Array, '*shape']) -> Bool[Array, '*shape']:
    """Which tokens end their sequence."""
    return jnp.isin(tokens, jnp.asarray(self.eos_ids, jnp.int32))

  def history(self, written: Int[Array, 'batch copies length'], step: Int[Array, '']) -> History:
    """Prompts and the first `step` tokens of what was written, side by side."""
    width = self.prompts.shape[1]
    prompts = jnp.broadcast_to(self.prompts[:, None], (*written.shape[:2], width))
    places = jnp.arange(width + written.shape[-1])
    known = (places >= width - self.prompt_lengths[:, None]) & (places < width + step)
    tokens = jnp.concatenate([prompts, written], axis=-1)
    return History(tokens, known, width, step, self.limits, self.eos_ids)


@dataclasses.dataclass(frozen=True)
class Strategy(abc.ABC):
  """How the next token is chosen. Subclasses are frozen dataclasses (compiled code depends on them).

  The state is a pytree of the strategy's own, with at least
    `last`: int32 [batch, copies], the tokens to feed next;
    `live`: bool [batch, copies], which of them can still change the result.

  Attributes:
    processors: what changes the scores of the next token before the strategy looks at them, in
      this order.
    eos_ids: the tokens that end a sequence, any of them; empty: the one that `generate` is given.
  """

  processors: Sequence[Processor] = dataclasses.field(default=(), kw_only=True)
  eos_ids: Sequence[int] = dataclasses.field(default=(), kw_only=True)

  # Whether choosing needs a random key.
  random: ClassVar[bool] = False

  def __post_init__(self):
    object.__setattr__(self, 'processors', tuple(self.processors))
    object.__setattr__(self, 'eos_ids', tuple(self.eos_ids))
    if any(token < 0 for token in self.eos_ids):
      raise UserError(f'{type(self).__name__}.eos_ids = {self.eos_ids} has a negative id')

  def process(
    self,
    scores: Float[Array, 'batch copies vocab'],
    written: Int[Array, 'batch copies length'],
    step: Int[Array, ''],
    request: Request,
  ) -> Float[Array, 'batch copies vocab']:
    """The scores of token number `step` behind what was written, as the processors leave them."""
    for processor in self.processors:
      scores = processor(scores, request.history(written, step))
    return scores

  def copies(self, num_return: int) -> int:
    """How many sequences are followed for each prompt to return `num_return` of them."""
    if num_return != 1:
      raise UserError(
        f'{type(self).__name__} gives one sequence a prompt, not num_return = {num_return}: '
        'use Sampling or Beam'
      )
    return 1

  @abc.abstractmethod
  def start(self, request: Request) -> Any:
    """The state before the first token."""

  @abc.abstractmethod
  def advance(
    self,
    state: Any,
    logits: Float[Array, 'batch copies vocab'],
    step: Int[Array, ''],
    request: Request,
  ) -> tuple[Any, Int[Array, 'batch copies'] | None]:
    """Chooses token number `step`.

    Returns the new state, and for each of its sequences which copy it extends, so that the cache
    can follow; None when each extends itself.
    """

  @abc.abstractmethod
  def finish(self, state: Any, request: Request) -> Generated:
    """The `num_return` sequences of each prompt."""
