"""Tests check the annotations of arrays."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from array_annotations import checked
from beartype.roar import BeartypeCallHintViolation
from flax import nnx
from jaxtyping import Float
from jaxtyping import TypeCheckError as OtherSize

from t2x.layers import MLP
from t2x.tasks.alignments import near_diagonal

Row = Float[np.ndarray, ' n']


@checked
def twice(x: Row, y: Row, as_text: bool = False) -> Float[np.ndarray, 'n 2']:
  both = np.stack([x, y], axis=1)
  return both.T if as_text else both


@checked
def first(x: Row, n: int) -> Float[np.ndarray, '{n}']:
  return x[:3]


@checked
@dataclasses.dataclass
class Pair:
  x: Row
  y: Row


def test_sizes_agree_between_arguments_and_results():
  x, y = np.ones(4), np.ones(5)
  assert twice(x, x).shape == (4, 2)
  for call in (lambda: twice(x, y), lambda: twice(x, x, as_text=True), lambda: Pair(x, y)):
    with pytest.raises(BeartypeCallHintViolation):
      call()
  assert Pair(y, y).x is y
  # Each call has sizes of its own.
  assert twice(y, y).shape == (5, 2)


def test_sizes_may_be_arguments():
  assert first(np.ones(4), 3).shape == (3,)
  with pytest.raises(OtherSize):
    first(np.ones(4), 2)


def test_functions_of_the_library_are_checked():
  assert near_diagonal(3, 2, 1.0).shape == (2, 3)
  with pytest.raises(BeartypeCallHintViolation):
    MLP(4, hidden_dim=8, rngs=nnx.Rngs(0))(jnp.ones((2, 3)), None)


def test_checks_can_be_left_out(unchecked):
  assert twice(np.ones(4), np.ones(4), as_text=True).shape == (2, 4)
