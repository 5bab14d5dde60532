"""Diverse beam search (Vijayakumar et al. 2016, https://arxiv.org/abs/1610.02424)."""

import dataclasses

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import NonNegative, Size
from t2x.decode.beam import Beam, Search, take

__all__ = ['DiverseBeam']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Groups:
  """The searches of the groups, whose beams are concatenated in this order."""

  searches: tuple[Search, ...]

  @property
  def last(self):
    return joined([search.last for search in self.searches])

  @property
  def live(self):
    return joined([search.live for search in self.searches])


def joined(trees):
  """Concatenates the leaves of trees along axis 1."""
  return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *trees)


@dataclasses.dataclass(frozen=True)
class DiverseBeam(Beam):
  """Beam search in groups that avoid the tokens that earlier groups choose at the same step.

  Each group is a `Beam` of `width / num_groups` beams with a separate pool. The groups take each step
  in order. A group subtracts `strength` from the processed log-probability of a token for each time
  that an earlier group has chosen the token at this step (Hamming diversity). The penalties remain in
  the scores; `log_probs` are the model's, without penalties.

  The hypotheses of all groups are returned by descending score. As in the paper and in fairseq,
  duplicates are kept: with strength 0 all groups return the same hypotheses. With one group the search
  is equal to `Beam`. A group of width 1 ends at its first finished hypothesis; the first such group is
  equal to greedy decoding.

  Attributes:
    num_groups: number of groups, a divisor of `width`.
    strength: penalty (nats) per choice of a token by an earlier group.
    counted: number of extensions per beam whose tokens are counted, the most probable of a group first.
      1: the extensions that the group selects, as in the paper. 2: equal to fairseq, which also counts
      extensions in reserve for beams that end.

  Raises:
    UserError: `num_groups` does not divide `width`, `strength` is negative, or `counted` is not 1 or 2.
  """

  num_groups: Size = 2
  strength: NonNegative = 0.5
  counted: Size = 1

  def __post_init__(self):
    super().__post_init__()
    if self.num_groups < 1 or self.width % self.num_groups:
      raise UserError(
        f'DiverseBeam.num_groups = {self.num_groups} must divide DiverseBeam.width = {self.width}'
      )
    if not self.strength >= 0:
      raise UserError(f'DiverseBeam.strength = {self.strength} must be at least 0')
    if self.counted not in (1, 2):
      raise UserError(f'DiverseBeam.counted = {self.counted} must be 1 or 2')

  @property
  def group(self) -> Beam:
    """The search of one group."""
    width = self.width // self.num_groups
    return Beam(width, self.length_penalty, self.stopping, processors=self.processors)

  def start(self, request):
    return Groups((self.group.start(request),) * self.num_groups)

  def advance(self, state, logits, step, request):
    group, rows = self.group, jnp.arange(len(logits))[:, None]
    first = self.counted * group.width
    penalties = jnp.zeros((len(logits), logits.shape[-1]))
    searches: list[Search] = []
    parents = []
    for search in state.searches:
      start = len(searches) * group.width
      own = logits[:, start : start + group.width]
      candidates, beams = group.extend(search.beams, own, step, request, penalties[:, None])
      search, beams = group.select(search.pool, candidates, beams, step, request)
      searches.append(search)
      parents.append(start + beams)
      exists = jnp.isfinite(candidates.scores[:, :first])
      penalty = jnp.where(exists, self.strength, 0.0)
      penalties = penalties.at[rows, candidates.tokens[:, :first, step]].add(penalty)
    return Groups(tuple(searches)), joined(parents)

  def finish(self, state, request):
    whole = dataclasses.replace(request, num_return=self.group.width)
    generated = joined([self.group.finish(search, whole) for search in state.searches])
    _, order = jax.lax.top_k(generated.scores, request.num_return)
    return take(generated, order)
