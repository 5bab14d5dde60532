"""A pseudorandom permutation of 0 .. n-1 that is computed element by element.

A Feistel network over the next square number is iterated until the result is below n (Black and
Rogaway 2002, "Ciphers with Arbitrary Finite Domains"). It needs no table: any example of any epoch
is located in constant time, and the order depends neither on a buffer size nor on library versions.
"""

import hashlib
import math

import numpy as np

ROUNDS = 8


def _mix(x: np.ndarray) -> np.ndarray:
  """Finaliser of splitmix64 (Steele et al. 2014): each bit of x affects all bits of the result."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def permute(index: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
  """Maps each index with a permutation of 0 .. size-1, which its entry in `keys` selects."""
  side = np.uint64(math.isqrt(size - 1) + 1)
  salts = np.arange(1, ROUNDS + 1, dtype=np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
  keys = _mix(keys.astype(np.uint64) + salts)
  result, outside = index.astype(np.uint64), np.arange(len(index))
  while len(outside):
    left, right = np.divmod(result[outside], side)
    for key in keys:
      left, right = right, (left + _mix(key[outside] + right) % side) % side
    result[outside] = left * side + right
    outside = outside[result[outside] >= size]
  return result.astype(np.int64)


def seed_of(seed: int, name: str) -> int:
  """Returns the seed of a named part of the data, which does not depend on the other parts."""
  digest = hashlib.sha256(f'{seed} {name}'.encode()).digest()
  return int.from_bytes(digest[:7], 'little')


def shuffled(numbers: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns epoch and row of each number of an endless stream; each epoch has its own order."""
  epoch, index = np.divmod(numbers.astype(np.int64), size)
  start = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
  return epoch, permute(index, size, _mix(start + epoch.astype(np.uint64)))
