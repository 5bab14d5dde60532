"""Beam search with a pool of finished hypotheses and a length penalty (Wu et al. 2016,
https://arxiv.org/abs/1609.08144)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.decode.penalties import GNMT, LengthPenalty
from t2x.decode.stopping import Stopping, WhenCertain
from t2x.decode.strategy import Generated, Request, Strategy
from t2x.decode.top_k import top_k

__all__ = ['Beam']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hypotheses:
  """Sequences of each prompt by descending score. A score of -inf marks an empty slot."""

  scores: Float[Array, 'batch slots']
  lengths: Int[Array, 'batch slots']
  tokens: Int[Array, 'batch slots length']
  log_probs: Float[Array, 'batch slots length']

  def best(self, count: int) -> tuple['Hypotheses', Int[Array, 'batch count']]:
    """Returns the `count` best hypotheses by descending score, and their indices."""
    _, indices = jax.lax.top_k(self.scores, count)
    return take(self, indices), indices


def take(tree, indices: Int[Array, 'batch picked']):
  """Selects along axis 1 of every leaf, with separate indices for each row."""
  return jax.tree.map(lambda leaf: jax.vmap(lambda row, i: row[i])(leaf, indices), tree)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Search:
  """The unfinished beams, scored by their sum of processed log-probabilities, and the pool of
  finished hypotheses."""

  beams: Hypotheses
  pool: Hypotheses
  last: Int[Array, 'batch width']
  live: Bool[Array, 'batch width']


@dataclasses.dataclass(frozen=True)
class Beam(Strategy):
  """Beam search: expands the `width` most probable prefixes and returns the best finished hypotheses.

  Each step extends every beam by every token. Of the `width` most probable extensions, those with
  an end token or at the length limit move to a pool, which keeps the `width` best by score =
  log-probability / length penalty. The `width` most probable unfinished extensions are the next
  beams. `stopping` decides when the search of a prompt ends, given a full pool. With width 1 the
  search ends at the first finished hypothesis, which makes it equal to greedy decoding.

  The search is equal to Hugging Face's: `num_beams=w, length_penalty=p` with the default
  `early_stopping=False` gives the hypotheses and scores of `Beam(w, AverageLength(p),
  AtCurrentLength())`. Neither counts the prompt in the length of a hypothesis.

  Attributes:
    width: number of beams, and size of the pool.
    length_penalty: normalises scores by length: GNMT or AverageLength.
    stopping: when the search of a prompt ends: WhenCertain, AtCurrentLength or WhenFull.
    processors: applied to log-probabilities; the processed values rank beams and hypotheses.

  Raises:
    UserError: `width` is below 1, or below the number of sequences to return.
  """

  width: Size = 4
  length_penalty: LengthPenalty = GNMT(alpha=0.6)
  stopping: Stopping = WhenCertain()

  def __post_init__(self):
    super().__post_init__()
    if self.width < 1:
      raise UserError(f'Beam.width = {self.width} must be at least 1')

  def copies(self, num_return):
    if num_return > self.width:
      raise UserError(f'Beam.width = {self.width} must be at least num_return = {num_return}')
    return self.width

  def start(self, request):
    batch, room = len(request.limits), request.max_new_tokens
    empty = Hypotheses(
      scores=jnp.full((batch, self.width), -jnp.inf),
      lengths=jnp.zeros((batch, self.width), jnp.int32),
      tokens=jnp.full((batch, self.width, room), request.pad_id, jnp.int32),
      log_probs=jnp.zeros((batch, self.width, room)),
    )
    # All copies hold the same prompt: only the first starts with a finite score.
    beams = dataclasses.replace(empty, scores=empty.scores.at[:, 0].set(0.0))
    last = jnp.full((batch, self.width), request.pad_id, jnp.int32)
    return Search(beams, empty, last, jnp.isfinite(beams.scores))

  def advance(self, state, logits, step, request):
    candidates, parents = self.extend(state.beams, logits, step, request)
    return self.select(state.pool, candidates, parents, step, request)

  def select(self, pool, candidates, parents, step, request):
    """Returns the search with the next beams and the new pool, and the index of the beam that each extends."""
    last = candidates.tokens[:, :, step]
    at_limit = step + 1 >= request.limits
    ends = at_limit[:, None] | request.ends(last)
    pool = self._collect(pool, candidates, ends)

    unfinished = dataclasses.replace(
      candidates, scores=jnp.where(ends, -jnp.inf, candidates.scores)
    )
    beams, indices = unfinished.best(self.width)
    done = self._done(beams, pool, request)
    scores = jnp.where(done[:, None], -jnp.inf, beams.scores)
    beams = dataclasses.replace(beams, scores=scores)
    live = jnp.isfinite(scores)
    last = jnp.where(live, take(last, indices), request.pad_id)
    return Search(beams, pool, last, live), take(parents, indices)

  def extend(self, beams, logits, step, request, penalties=0.0):
    """Returns the most probable extensions, and the index of the beam that each extends.

    Each beam has one finished extension per end token. One more extension per beam is returned, so
    that at least `width` of them are unfinished. `penalties`, broadcast to [batch, width, vocab], are
    subtracted from the processed log-probabilities.
    """
    batch, width, vocab = logits.shape
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    processed = self.process(log_probs, beams.tokens, step, request)
    totals = (beams.scores[:, :, None] + processed - penalties).reshape(batch, width * vocab)
    scores, flat = top_k(totals, min(1 + max(len(request.eos_ids), 1), vocab) * width)
    parents, tokens = flat // vocab, (flat % vocab).astype(jnp.int32)
    added = jnp.take_along_axis(log_probs.reshape(batch, width * vocab), flat, axis=1)
    prefixes = take(beams, parents)
    extended = Hypotheses(
      scores=scores,
      lengths=jnp.full(scores.shape, step + 1, jnp.int32),
      tokens=prefixes.tokens.at[:, :, step].set(tokens),
      log_probs=prefixes.log_probs.at[:, :, step].set(added),
    )
    return extended, parents

  def _collect(self, pool, candidates, ends):
    """Adds the finished candidates among the `width` most probable to the pool."""
    among_best = jnp.arange(ends.shape[1]) < self.width
    penalised = candidates.scores / self.length_penalty.divisor(candidates.lengths)
    finished = dataclasses.replace(
      candidates, scores=jnp.where(ends & among_best, penalised, -jnp.inf)
    )
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), pool, finished)
    return both.best(self.width)[0]

  def _done(self, beams, pool, request):
    """Returns bool [batch]: whether the search of each prompt has ended."""
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
    # An empty slot may hold tokens of an unfinished candidate.
    filled = jnp.isfinite(pool.scores)
    log_probs = jnp.where(filled[:, :, None], pool.log_probs, 0.0)
    return Generated(
      tokens=jnp.where(filled[:, :, None], pool.tokens, request.pad_id),
      lengths=jnp.where(filled, pool.lengths, 0),
      log_probs=log_probs,
      sum_log_probs=log_probs.sum(axis=-1),
      scores=pool.scores,
    )
