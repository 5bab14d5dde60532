"""Extraction and comparison of entities in sequences of BIO tags, on the device.

Entities are defined as in conlleval (https://www.clips.uantwerpen.be/conll2003/ner/) and in seqeval's
default mode: an entity of type X begins at `B-X`, or at `I-X` after `O` or after another type, and includes
all directly following `I-X`.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from t2x.base.errors import UserError


@dataclasses.dataclass(frozen=True)
class Tags:
  """Lookup tables from label ids to the parts of BIO tags.

  Attributes:
    inside: True for labels of entities: all except `O`.
    begins: True for labels `B-X`.
    types: the number of the type X; 0 for `O`.
  """

  inside: np.ndarray
  begins: np.ndarray
  types: np.ndarray

  @classmethod
  def from_labels(cls, labels: Sequence[str]) -> 'Tags | None':
    """Returns the tags of a label set; None if the labels are not BIO tags.

    Raises:
      UserError: only some of the labels are BIO tags.
    """
    others = [label for label in labels if label != 'O' and label[:2] not in ('B-', 'I-')]
    if len(others) == len(labels) or 'O' not in labels:
      return None
    if others:
      raise UserError(
        f'the label {others[0]!r} is not a BIO tag, but other labels are: '
        'use only O, B-TYPE and I-TYPE'
      )
    names = ['O', *dict.fromkeys(label[2:] for label in labels if label != 'O')]
    return cls(
      inside=np.array([label != 'O' for label in labels]),
      begins=np.array([label.startswith('B-') for label in labels]),
      types=np.array([0 if label == 'O' else names.index(label[2:]) for label in labels]),
    )


@dataclasses.dataclass(frozen=True)
class Entities:
  """The entities of a batch of sequences, stored at the positions where they begin.

  Attributes:
    begins: True where an entity begins.
    ends: position after the end of the entity; undefined where `begins` is False.
    types: number of the type of the entity.
  """

  begins: Bool[Array, 'batch length']
  ends: Int[Array, 'batch length']
  types: Int[Array, 'batch length']


def entities(
  tags: Tags, labels: Int[Array, 'batch length'], present: Bool[Array, 'batch length']
) -> Entities:
  """Extracts the entities of label sequences.

  Args:
    tags: the tag set.
    labels: label ids.
    present: False for positions that count as `O`, such as padding.
  """
  types = jnp.where(present, jnp.asarray(tags.types)[labels], 0)
  inside = jnp.asarray(tags.inside)[labels] & present
  before = jnp.pad(types[:, :-1], ((0, 0), (1, 0)))
  begins = inside & (jnp.asarray(tags.begins)[labels] | (before != types))
  # Position of the next label, after each position, that does not continue an entity.
  length = labels.shape[1]
  stops = jnp.where(inside & ~begins, length, jnp.arange(length))
  stops = jnp.pad(stops[:, 1:], ((0, 0), (0, 1)), constant_values=length)
  return Entities(begins, jax.lax.cummin(stops, axis=1, reverse=True), types)


def num_equal(a: Entities, b: Entities) -> Int[Array, '']:
  """Counts the entities that are in both, with the same begin, end and type."""
  return (a.begins & b.begins & (a.ends == b.ends) & (a.types == b.types)).sum()
