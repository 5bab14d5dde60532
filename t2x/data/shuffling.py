"""A permutation of 0 .. n-1 that is computed element by element.

A Feistel network over the next even power of two, walked until it lands below n (Black and Rogaway
2002, "Ciphers with Arbitrary Finite Domains"). It needs no table, so that any example of any epoch
is found in no time and the order depends neither on the number of rows held in memory nor on a
library's version.
"""

import numpy as np

__all__ = ['permute', 'shuffled']

ROUNDS = 8


def _mixed(x: np.ndarray) -> np.ndarray:
  """splitmix64's finaliser (Steele et al. 2014): all bits of x in all bits of the result."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def permute(index: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
  """Where a permutation of 0 .. size-1 takes each index; `keys` (one an index) chooses it."""
  half = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
  mask = np.uint64((1 << int(half)) - 1)
  outside = np.arange(len(index))
  result, keys = index.astype(np.uint64), keys.astype(np.uint64)
  # A walk leaves the numbers below `size` with probability less than 3/4 a step.
  while len(outside):
    x, key = result[outside], keys[outside]
    left, right = x >> half, x & mask
    for number in range(1, ROUNDS + 1):
      salt = np.uint64(number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
      left, right = right, left ^ (_mixed(_mixed(key + salt) + right) & mask)
    x = (left << half) | right
    result[outside] = x
    outside = outside[x >= size]
  return result.astype(np.int64)


def shuffled(numbers: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Epoch and row of each number of an endless stream in which each epoch has its own order."""
  epoch, index = np.divmod(numbers.astype(np.int64), size)
  start = _mixed(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
  return epoch, permute(index, size, _mixed(start + epoch.astype(np.uint64)))
