"""Beam search with a pool of finished hypotheses and a length penalty, as in Google's translation
system (Wu et al. 2016, https://arxiv.org/abs/1609.08144)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.decode.penalties import GNMT, LengthPenalty
from t2x.decode.stopping import Stopping, WhenCertain
from t2x.decode.strategy import Generated, Request, Strategy
from t2x.errors import UserError
from t2x.ranges import Size


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hypotheses:
  """Sequences of each prompt with their rank, best first. A score of -inf marks an empty place."""

  scores: Float[Array, 'batch places']
  lengths: Int[Array, 'batch places']
  tokens: Int[Array, 'batch places length']
  log_probs: Float[Array, 'batch places length']

  def best(self, count: int) -> tuple['Hypotheses', Int[Array, 'batch count']]:
    """The `count` of the highest score, in order, and where they were."""
    _, places = jax.lax.top_k(self.scores, count)
    return take(self, places), places


def take(tree, places: Int[Array, 'batch picked']):
  """Picks along axis 1 of every leaf, for each row its own places."""
  return jax.tree.map(lambda leaf: jax.vmap(lambda row, i: row[i])(leaf, places), tree)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Search:
  """The beams that still grow (scored by the sum of their processed log-probabilities), the pool
  of those finished."""

  beams: Hypotheses
  pool: Hypotheses
  last: Int[Array, 'batch width']
  live: Bool[Array, 'batch width']


@dataclasses.dataclass(frozen=True)
class Beam(Strategy):
  """Keeps the `width` most probable prefixes, and returns the best finished hypotheses.

  At each step the beams are extended by every token. Of the `width` most probable extensions those
  that end, by the end token or at the limit, go to a pool that keeps the `width` best by score =
  log-probability / length penalty. The `width` most probable extensions that do not end are the
  next beams. A prompt is done when `stopping` says so of a full pool. A beam of width 1 has nothing
  to compare: it is done with its first finished hypothesis, and so is greedy decoding.

  This is Hugging Face's search too. Its `num_beams=w, length_penalty=p` with its default
  `early_stopping=False` is `Beam(w, AverageLength(p), AtCurrentLength())`, same hypotheses, same
  scores. Neither counts the prompt in a hypothesis's length.

  Attributes:
    width: how many prefixes are followed, and how many hypotheses kept.
    length_penalty: how hypotheses of different lengths are compared: GNMT or AverageLength.
    stopping: when a prompt is done: WhenCertain, AtCurrentLength or WhenFull.
    processors: they work on log-probabilities, and what they make of them is what beams and
      hypotheses are ranked by.

  Raises:
    UserError: a width below 1; more sequences to return than `width`.
  """

  width: Size = 4
  length_penalty: LengthPenalty = GNMT(alpha=0.6)
  stopping: Stopping = WhenCertain()

  def __post_init__(self):
    super().__post_init__()
    if self.width < 1:
      raise UserError(f'Beam.width = {self.width} is below 1')

  def copies(self, num_return):
    if num_return > self.width:
      raise UserError(
        f'Beam.width = {self.width} keeps fewer hypotheses than num_return = {num_return}'
      )
    return self.width

  def start(self, request):
    batch, room = len(request.limits), request.max_new_tokens
    empty = Hypotheses(
      scores=jnp.full((batch, self.width), -jnp.inf),
      lengths=jnp.zeros((batch, self.width), jnp.int32),
      tokens=jnp.full((batch, self.width, room), request.pad_id, jnp.int32),
      log_probs=jnp.zeros((batch, self.width, room)),
    )
    # All copies are the same prompt: one of them is enough to start from.
    beams = dataclasses.replace(empty, scores=empty.scores.at[:, 0].set(0.0))
    last = jnp.full((batch, self.width), request.pad_id, jnp.int32)
    return Search(beams, empty, last, jnp.isfinite(beams.scores))

  def advance(self, state, logits, step, request):
    candidates, parents = self._extend(state.beams, logits, step, request)
    last = candidates.tokens[:, :, step]
    at_limit = step + 1 >= request.limits
    ends = at_limit[:, None] | request.ends(last)
    pool = self._collect(state.pool, candidates, ends)

    growing = dataclasses.replace(candidates, scores=jnp.where(ends, -jnp.inf, candidates.scores))
    beams, places = growing.best(self.width)
    done = self._done(beams, pool, request)
    scores = jnp.where(done[:, None], -jnp.inf, beams.scores)
    beams = dataclasses.replace(beams, scores=scores)
    live = jnp.isfinite(scores)
    last = jnp.where(live, take(last, places), request.pad_id)
    return Search(beams, pool, last, live), take(parents, places)

  def _extend(self, beams, logits, step, request):
    """The most probable extensions, and the beam each extends.

    Each beam ends in as many ways as there are end tokens: there is one extension per beam more than
    that, so that at least `width` of them do not end.
    """
    batch, width, vocab = logits.shape
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    processed = self.process(log_probs, beams.tokens, step, request)
    totals = (beams.scores[:, :, None] + processed).reshape(batch, width * vocab)
    scores, flat = jax.lax.top_k(totals, min(1 + max(len(request.eos_ids), 1), vocab) * width)
    parents, tokens = flat // vocab, (flat % vocab).astype(jnp.int32)
    added = jnp.take_along_axis(log_probs.reshape(batch, width * vocab), flat, axis=1)
    old = take(beams, parents)
    extended = Hypotheses(
      scores=scores,
      lengths=jnp.full(scores.shape, step + 1, jnp.int32),
      tokens=old.tokens.at[:, :, step].set(tokens),
      log_probs=old.log_probs.at[:, :, step].set(added),
    )
    return extended, parents

  def _collect(self, pool, candidates, ends):
    """The pool with those among the `width` most probable candidates that end."""
    among_best = jnp.arange(ends.shape[1]) < self.width
    penalised = candidates.scores / self.length_penalty.divisor(candidates.lengths)
    finished = dataclasses.replace(
      candidates, scores=jnp.where(ends & among_best, penalised, -jnp.inf)
    )
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), pool, finished)
    return both.best(self.width)[0]

  def _done(self, beams, pool, request):
    """Bool [batch]: nothing that is still growing enters the pool."""
    done = self.stopping.done(
      pool.scores[:, -1],
      beams.scores[:, 0],
      beams.lengths[:, 0],
      request.limits,
      self.length_penalty,
    )
    return done | jnp.isfinite(pool.scores[:, 0]) if self.width == 1 else done

  def finish(self, state, request: Request):
    pool = take(state.pool, jnp.arange(request.num_return)[None].repeat(len(request.limits), 0))
    # An empty place may hold the remains of a candidate that was not finished.
    found = jnp.isfinite(pool.scores)
    log_probs = jnp.where(found[:, :, None], pool.log_probs, 0.0)
    return Generated(
      tokens=jnp.where(found[:, :, None], pool.tokens, request.pad_id),
      lengths=jnp.where(found, pool.lengths, 0),
      log_probs=log_probs,
      sum_log_probs=log_probs.sum(axis=-1),
      scores=pool.scores,
    )
