"""A permutation of 0 .. n-1 that is computed element by element.

A Feistel network over the next square number, walked until it lands below n (Black and Rogaway 2002,
"Ciphers with Arbitrary Finite Domains"). It needs no table, so that any example of any epoch
is found in no time and the order depends neither on the number of rows held in memory nor on a
library's version.
"""

import math

import numpy as np

ROUNDS = 8


def _mixed(x: np.ndarray) -> np.ndarray:
  """splitmix64's finaliser (Steele et al. 2014): all bits of x in all bits of the result."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def permute(index: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
  """Where a permutation of 0 .. size-1 takes each index; `keys` (one an index) chooses it."""
  side = np.uint64(math.isqrt(size - 1) + 1)
  salts = np.arange(1, ROUNDS + 1, dtype=np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
  keys = _mixed(keys.astype(np.uint64) + salts)
  result, outside = index.astype(np.uint64), np.arange(len(index))
  while len(outside):
    left, right = np.divmod(result[outside], side)
    for key in keys:
      left, right = right, (left + _mixed(key[outside] + right) % side) % side
    result[outside] = left * side + right
    outside = outside[result[outside] >= size]
  return result.astype(np.int64)


def shuffled(numbers: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Epoch and row of each number of an endless stream in which each epoch has its own order."""
  epoch, index = np.divmod(numbers.astype(np.int64), size)
  start = _mixed(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
  return epoch, permute(index, size, _mixed(start + epoch.astype(np.uint64)))
