"""Entities in sequences of BIO tags, found and compared on the device.

What counts as an entity is what conlleval (https://www.clips.uantwerpen.be/conll2003/ner/) and
seqeval's default mode say: one begins at `B-X`, and at `I-X` behind `O` or behind another type, and
goes on through the `I-X` that follow.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from t2x.errors import UserError


@dataclasses.dataclass(frozen=True)
class Tags:
  """A tag set by label id, for look-ups on the device.

  Attributes:
    inside: which labels belong to an entity: all but `O`.
    begins: which are `B-X`.
    types: a number for each X; 0 for `O`.
  """

  inside: np.ndarray
  begins: np.ndarray
  types: np.ndarray

  @classmethod
  def of(cls, labels: Sequence[str]) -> 'Tags | None':
    """The tags of a label set; None where the labels are no BIO tags.

    Raises:
      UserError: some of the labels are BIO tags, and others are not.
    """
    odd = [label for label in labels if label != 'O' and label[:2] not in ('B-', 'I-')]
    if len(odd) == len(labels) or 'O' not in labels:
      return None
    if odd:
      raise UserError(f'{odd[0]!r} stands among BIO tags: they are O, B-TYPE and I-TYPE')
    names = ['O', *dict.fromkeys(label[2:] for label in labels if label != 'O')]
    return cls(
      inside=np.array([label != 'O' for label in labels]),
      begins=np.array([label.startswith('B-') for label in labels]),
      types=np.array([0 if label == 'O' else names.index(label[2:]) for label in labels]),
    )


@dataclasses.dataclass(frozen=True)
class Entities:
  """The entities of sequences, told at the place where each begins.

  Attributes:
    begins: where one begins.
    ends: the place behind its end; of no meaning elsewhere.
    types: its type.
  """

  begins: Bool[Array, 'batch length']
  ends: Int[Array, 'batch length']
  types: Int[Array, 'batch length']


def entities(
  tags: Tags, labels: Int[Array, 'batch length'], present: Bool[Array, 'batch length']
) -> Entities:
  """The entities of label sequences; places that are not `present` count as `O`."""
  types = jnp.where(present, jnp.asarray(tags.types)[labels], 0)
  inside = jnp.asarray(tags.inside)[labels] & present
  before = jnp.pad(types[:, :-1], ((0, 0), (1, 0)))
  begins = inside & (jnp.asarray(tags.begins)[labels] | (before != types))
  # The place of the next label that does not go on with an entity, counted from the one behind.
  length = labels.shape[1]
  places = jnp.where(inside & ~begins, length, jnp.arange(length))
  places = jnp.pad(places[:, 1:], ((0, 0), (0, 1)), constant_values=length)
  return Entities(begins, jax.lax.cummin(places, axis=1, reverse=True), types)


def num_equal(a: Entities, b: Entities) -> Int[Array, '']:
  """How many entities are in both, with the same begin, end and type."""
  return (a.begins & b.begins & (a.ends == b.ends) & (a.types == b.types)).sum()
