"""Feature maps of linear attention: elu + 1, and the random features of Performer (Choromanski et al. 2020,
https://arxiv.org/abs/2009.14794)."""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2x.ranges import Natural, Size


@runtime_checkable
class FeatureMap(Protocol):
  """Maps queries and keys to positive features; phi(q) phi(k)' is the attention weight before normalisation.

  Built as `FeatureMap(head_dim, rngs=rngs)`.

  Attributes:
    num_features: features per head.
  """

  num_features: int

  def queries(
    self, q: Float[Array, 'batch length heads head_dim']
  ) -> Float[Array, 'batch length heads features']:
    """Returns phi(q) times any positive factor per query and head, which the normalisation cancels."""
    ...

  def keys(
    self, k: Float[Array, 'batch length heads head_dim']
  ) -> tuple[
    Float[Array, 'batch length heads features'], Float[Array, 'batch length heads'] | None
  ]:
    """Returns features f and logarithms s with phi(k) = exp(s) f, so that phi(k) may exceed the range of the
    dtype. No gradient flows through s. None: s = 0."""
    ...


class EluPlusOne(nnx.Module):
  """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236).

  Args:
    head_dim: features per head.
  """

  num_features: int

  def __init__(self, head_dim: Size, *, rngs: nnx.Rngs):
    self.num_features = head_dim

  def queries(
    self, q: Float[Array, 'batch length heads head_dim']
  ) -> Float[Array, 'batch length heads head_dim']:
    """Returns the features of queries."""
    # exp(x) for x < 0 avoids the rounding errors of elu(x) + 1.
    return jnp.where(q > 0, q + 1, jnp.exp(jnp.where(q > 0, 0, q)))

  def keys(
    self, k: Float[Array, 'batch length heads head_dim']
  ) -> tuple[Float[Array, 'batch length heads head_dim'], None]:
    """Returns the features of keys."""
    return self.queries(k), None


class RandomFeatures(nnx.Module):
  """Base class of feature maps that project queries and keys to random directions.

  The directions omega [num_features, head_dim] are not parameters but a function of the seed, which all heads
  share, and all layers with the same seed. They are not redrawn during training. Queries and keys are scaled by
  head_dim**-0.25, so that their products are those of softmax attention.

  Args:
    head_dim: features per head of queries and keys.
    num_features: number of directions (m in the paper).
    seed: seed of the directions.
  """

  num_features: int

  def __init__(
    self, head_dim: Size, *, num_features: Size = 256, seed: Natural = 0, rngs: nnx.Rngs
  ):
    self.head_dim = head_dim
    self.num_features = num_features
    self.seed = seed

  def scaled(
    self, x: Float[Array, 'batch length heads head_dim']
  ) -> Float[Array, 'batch length heads head_dim']:
    """Returns x head_dim**-0.25."""
    return x * self.head_dim**-0.25

  def project(
    self, x: Float[Array, 'batch length heads head_dim']
  ) -> Float[Array, 'batch length heads features']:
    """Returns x omega'."""
    omega = orthogonal_normal(self.num_features, self.head_dim, self.seed)
    return jnp.einsum('blhd,fd->blhf', x, omega.astype(x.dtype))


class FavorPlus(RandomFeatures):
  """FAVOR+ of Performer (https://arxiv.org/abs/2009.14794): phi(x) = exp(omega x - |x|^2 / 2) / sqrt(m), whose
  products are unbiased estimates of exp(q k' / sqrt(head_dim)).

  Each query and key is divided by its own largest feature; the logarithms of the keys' divisors are summed with
  the features, so no output depends on the size of later tokens or of other segments. The constant 1e-4
  that the authors' code adds to all features is left out. Arguments are those of `RandomFeatures`.
  """

  def queries(
    self, q: Float[Array, 'batch length heads head_dim']
  ) -> Float[Array, 'batch length heads features']:
    """Returns the features of queries, divided by the largest of each query and head."""
    # |q|^2 / 2 and sqrt(m) are factors that the normalisation cancels.
    logits = self.project(self.scaled(q))
    return jnp.exp(logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True)))

  def keys(
    self, k: Float[Array, 'batch length heads head_dim']
  ) -> tuple[Float[Array, 'batch length heads features'], Float[Array, 'batch length heads']]:
    """Returns the features of keys, divided by the largest of each key and head, and its logarithm."""
    k = self.scaled(k)
    logits = self.project(k) - jnp.square(k).sum(axis=-1, keepdims=True) / 2
    largest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    return jnp.exp(logits - largest), largest[..., 0]


class ReluFeatures(RandomFeatures):
  """phi(x) = relu(omega x) + 0.001, generalised attention of Performer (https://arxiv.org/abs/2009.14794).

  Arguments are those of `RandomFeatures`.
  """

  def queries(
    self, q: Float[Array, 'batch length heads head_dim']
  ) -> Float[Array, 'batch length heads features']:
    """Returns the features of queries."""
    return jax.nn.relu(self.project(self.scaled(q))) + 1e-3

  def keys(
    self, k: Float[Array, 'batch length heads head_dim']
  ) -> tuple[Float[Array, 'batch length heads features'], None]:
    """Returns the features of keys."""
    return self.queries(k), None


def orthogonal_normal(rows: int, columns: int, seed: int) -> np.ndarray:
  """Returns vectors [rows, columns] of distribution N(0, I), orthogonal in blocks of `columns` rows."""
  rng = np.random.default_rng(seed)
  blocks = []
  for _ in range(-(-rows // columns)):
    q, r = np.linalg.qr(rng.normal(size=(columns, columns)))
    # With these signs the rotation is uniformly distributed.
    blocks.append(np.sign(np.diag(r))[:, None] * q.T)
  norms = np.linalg.norm(rng.normal(size=(rows, columns)), axis=1, keepdims=True)
  return np.concatenate(blocks)[:rows] * norms
