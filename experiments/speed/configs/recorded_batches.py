"""A causal language model that logs a digest of the batch of each train step, to compare the batches of runs."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t2x.tasks import CausalLM

__all__ = ['RecordedLM']


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedLM(CausalLM):
  """Trains as `CausalLM`, and logs the metrics `batch_high` and `batch_low`: the halves of a digest of 32 bits.

  They are computed in the train step, from the batch that it trains on.
  """

  def sums(self, model, batch, key, teacher=None):
    """Returns the sums of `CausalLM`, in training with the digest."""
    output = super().sums(model, batch, key, teacher)
    if key is None:
      return output
    value = digest(batch)
    # Integers below 2^16 are exact in float32.
    halves = {'batch_high': value >> 16, 'batch_low': value & 0xFFFF}
    metrics = {name: (half.astype(jnp.float32), jnp.ones(())) for name, half in halves.items()}
    return dataclasses.replace(output, metrics={**output.metrics, **metrics})


def digest(batch: Mapping[str, jax.Array]) -> jax.Array:
  """Returns a digest of the arrays of a batch and their order, uint32 []; the order of the sum does not change it."""
  values = jnp.concatenate([batch[name].reshape(-1) for name in sorted(batch)]).astype(jnp.uint32)
  mixed = values * jnp.uint32(0x85EBCA6B) + jnp.arange(values.size, dtype=jnp.uint32) + 1
  # The last steps of MurmurHash3.
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
  return (mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32)
