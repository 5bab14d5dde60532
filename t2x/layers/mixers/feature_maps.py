"""Feature maps of linear attention: elu + 1, the products of DPFP (Schlag et al.
2021, https://arxiv.org/abs/2102.11174), and the random features of Performer
(Choromanski et al. 2020, https://arxiv.org/abs/2009.14794)."""

import abc
import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Natural, Size
from t2x.layers.attention.head_projections import HeadFeatures
from t2x.layers.dtypes import exact_einsum
from t2x.layers.interfaces import Call

__all__ = ['DPFP', 'CallFeatures', 'EluPlusOne', 'FavorPlus', 'FeatureMap', 'ReluFeatures']

Features = Float[Array, 'batch length heads features']
# Logarithms of factors.
Logs = Float[Array, 'batch length heads']
Directions = Float[Array, 'features head_dim']


@runtime_checkable
class FeatureMap(Protocol):
  """Maps queries and keys to positive features; phi(q) phi(k)' is the attention weight before normalisation.

  Built as `FeatureMap(head_dim, rngs=rngs)`.
  """

  @property
  def num_features(self) -> int:
    """Number of features per head."""
    ...

  def queries(self, q: HeadFeatures) -> Features:
    """Returns phi(q) times any positive factor per query and head, which the normalisation cancels."""
    ...

  def keys(self, k: HeadFeatures) -> tuple[Features, Logs | None]:
    """Returns features f and logarithms s with phi(k) = exp(s) f, so that phi(k) may exceed the range of the
    dtype. No gradient flows through s. None: s = 0."""
    ...


@runtime_checkable
class CallFeatures(FeatureMap, Protocol):
  """Feature map that may depend on the call: on its step and its layer."""

  def at(self, call: Call) -> FeatureMap:
    """Returns the feature map of the queries and keys of this call."""
    ...


def features_of(features: FeatureMap, call: Call) -> FeatureMap:
  """Returns the feature map of the queries and keys of a call."""
  return features.at(call) if isinstance(features, CallFeatures) else features


class EluPlusOne(nnx.Module):
  """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236).

  Args:
    head_dim: features per head.
  """

  implements = (FeatureMap,)
  num_features: int

  def __init__(self, head_dim: Size, *, rngs: nnx.Rngs):
    self.num_features = head_dim

  def queries(self, q: HeadFeatures) -> HeadFeatures:
    # exp(x) for x < 0 avoids the rounding errors of elu(x) + 1.
    return jnp.where(q > 0, q + 1, jnp.exp(jnp.where(q > 0, 0, q)))

  def keys(self, k: HeadFeatures) -> tuple[HeadFeatures, None]:
    return self.queries(k), None


class DPFP(nnx.Module):
  """Deterministic parameter-free projection: products of the elements of r = relu([x, -x]) with those at the distances
  1, ..., num_shifts (Schlag et al. 2021, https://arxiv.org/abs/2102.11174, section 5.3).

  It has 2 * num_shifts * head_dim features, so that more keys than head_dim can be orthogonal.

  Args:
    head_dim: features per head of queries and keys.
    num_shifts: number of distances (nu in the paper); below 2 * head_dim.
  """

  implements = (FeatureMap,)
  num_features: int

  def __init__(self, head_dim: Size, *, num_shifts: Size = 1, rngs: nnx.Rngs):
    if num_shifts >= 2 * head_dim:
      raise UserError(
        f'DPFP.num_shifts = {num_shifts} repeats products of the {2 * head_dim} elements: choose '
        f'less than {2 * head_dim}'
      )
    self.num_shifts = num_shifts
    self.num_features = 2 * num_shifts * head_dim

  def queries(self, q: HeadFeatures) -> Features:
    r = jax.nn.relu(jnp.concatenate([q, -q], axis=-1))
    shifts = range(1, self.num_shifts + 1)
    return jnp.concatenate([r * jnp.roll(r, shift, axis=-1) for shift in shifts], axis=-1)

  def keys(self, k: HeadFeatures) -> tuple[Features, None]:
    return self.queries(k), None


class RandomFeatures(nnx.Module):
  """Base class of feature maps that project queries and keys to random directions.

  The directions omega [num_features, head_dim] are not parameters but a function of the seed, which all heads
  share, and all layers with the same seed. Queries and keys are scaled by head_dim**-0.25, so that their products
  are those of softmax attention.

  With `redraw_every` they are a function of (seed, step // redraw_every, layer), as the paper redraws them during
  training. Evaluation and generation do not depend on the step: they use the directions of step 0. Stacks with
  the same seed (encoder and decoder) have the same directions.

  Args:
    head_dim: features per head of queries and keys.
    num_features: number of directions (m in the paper).
    seed: seed of the directions.
    redraw_every: number of train steps with the same directions. None: the directions never change.

  Raises:
    UserError: with `redraw_every`, a call has a random key and no step.
  """

  implements = (CallFeatures,)
  num_features: int

  def __init__(
    self,
    head_dim: Size,
    *,
    num_features: Size = 256,
    seed: Natural = 0,
    redraw_every: Count | None = None,
    rngs: nnx.Rngs,
  ):
    self.head_dim = head_dim
    self.num_features = num_features
    self.seed = seed
    self.redraw_every = redraw_every

  def at(self, call: Call) -> FeatureMap:
    """Returns the features with the directions of the step and the layer of this call."""
    if self.redraw_every is None:
      return self
    if call.step is None and call.key is not None:
      raise UserError(
        f'{self._setting} needs the train step, but this call has a random key and no step: enter '
        't2x.base.step.in_step(step=step) in your train step, or leave the setting out'
      )
    draw = 0 if call.step is None else call.step // self.redraw_every
    key = jax.random.key(self.seed)
    for number in (draw, call.place, call.repeat):
      key = jax.random.fold_in(key, number)
    omega = drawn_directions(self.num_features, self.head_dim, key)
    return DirectedFeatures(self, omega)

  def queries(self, q: HeadFeatures, omega: Directions | None = None) -> Features:
    """Returns the features of queries; see `FeatureMap` and `project`."""
    return self.of_queries(self.project(self.scaled(q), omega))

  def keys(self, k: HeadFeatures, omega: Directions | None = None) -> tuple[Features, Logs | None]:
    """Returns the features of keys; see `FeatureMap` and `project`."""
    k = self.scaled(k)
    return self.of_keys(self.project(k, omega), k)

  @abc.abstractmethod
  def of_queries(self, logits: Features) -> Features:
    """Returns the features of queries; `logits` are their products with the directions."""

  @abc.abstractmethod
  def of_keys(self, logits: Features, k: HeadFeatures) -> tuple[Features, Logs | None]:
    """Returns the features of scaled keys `k`; `logits` are their products with the directions."""

  @property
  def _setting(self) -> str:
    return f'{type(self).__name__}.redraw_every = {self.redraw_every}'

  def scaled(self, x: HeadFeatures) -> HeadFeatures:
    """Returns x head_dim**-0.25."""
    return x * self.head_dim**-0.25

  def project(self, x: HeadFeatures, omega: Directions | None = None) -> Features:
    """Returns x omega'; `omega` is None for directions that never change."""
    if omega is None and self.redraw_every is not None:
      raise UserError(
        f'{self._setting} would have no effect, because this mixer does not read the features of its call '
        '(CallFeatures.at): use LinearAttention, or leave the setting out'
      )
    directions: np.ndarray | Array = (
      orthogonal_normal(self.num_features, self.head_dim, self.seed) if omega is None else omega
    )
    return exact_einsum('blhd,fd->blhf', x, jnp.asarray(directions, x.dtype))


@dataclasses.dataclass(frozen=True)
class DirectedFeatures:
  """Random features with the directions of one call; a `FeatureMap`.

  Attributes:
    features: the feature map.
    omega: its directions.
  """

  features: RandomFeatures
  omega: Directions

  @property
  def num_features(self) -> int:
    """Number of features per head."""
    return self.features.num_features

  def queries(self, q: HeadFeatures) -> Features:
    return self.features.queries(q, self.omega)

  def keys(self, k: HeadFeatures) -> tuple[Features, Logs | None]:
    return self.features.keys(k, self.omega)


class FavorPlus(RandomFeatures):
  """FAVOR+ of Performer (https://arxiv.org/abs/2009.14794): phi(x) = exp(omega x - |x|^2 / 2) / sqrt(m), whose
  products are unbiased estimates of exp(q k' / sqrt(head_dim)).

  Each query and key is divided by its own largest feature; the logarithms of the keys' divisors are summed with
  the features, so no output depends on the size of later tokens or of other segments. The constant 1e-4
  that the authors' code adds to all features is left out. Where queries and keys are so large that the products of
  the features of a query with those of all keys underflow, the output is NaN; `ReluFeatures` cannot underflow.
  Arguments are those of `RandomFeatures`.
  """

  def of_queries(self, logits: Features) -> Features:
    """Returns the features of queries, divided by the largest of each query and head."""
    # |q|^2 / 2 and sqrt(m) are factors that the normalisation cancels.
    return jnp.exp(logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True)))

  def of_keys(self, logits: Features, k: HeadFeatures) -> tuple[Features, Logs]:
    """Returns the features of keys, divided by the largest of each key and head, and its logarithm."""
    logits = logits - jnp.square(k).sum(axis=-1, keepdims=True) / 2
    largest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    return jnp.exp(logits - largest), largest[..., 0]


class ReluFeatures(RandomFeatures):
  """phi(x) = relu(omega x) + 0.001, generalised attention of Performer (https://arxiv.org/abs/2009.14794).

  Arguments are those of `RandomFeatures`.
  """

  def of_queries(self, logits: Features) -> Features:
    return jax.nn.relu(logits) + 1e-3

  def of_keys(self, logits: Features, k: HeadFeatures) -> tuple[Features, None]:
    return self.of_queries(logits), None


def orthogonal_normal(rows: int, columns: int, seed: int) -> np.ndarray:
  """Returns vectors [rows, columns] of distribution N(0, I), orthogonal in blocks of `columns` rows."""
  # Raw bits, the only stream of NumPy that does not change between versions: a checkpoint keeps its directions.
  bits = np.random.PCG64(seed)
  blocks = []
  for _ in range(-(-rows // columns)):
    q, r = np.linalg.qr(_normal(bits, columns, columns))
    # With these signs the rotation is uniformly distributed.
    blocks.append(np.sign(np.diag(r))[:, None] * q.T)
  norms = np.linalg.norm(_normal(bits, rows, columns), axis=1, keepdims=True)
  return np.concatenate(blocks)[:rows] * norms


def _normal(bits: np.random.PCG64, rows: int, columns: int) -> np.ndarray:
  """Returns normal numbers [rows, columns] from raw bits (Box and Muller 1958)."""
  raw = bits.random_raw(2 * rows * columns).reshape(rows, columns, 2)
  uniform = ((raw >> 11) + 0.5) * 2.0**-53  # In (0, 1).
  return np.sqrt(-2 * np.log(uniform[..., 0])) * np.cos(2 * np.pi * uniform[..., 1])


def drawn_directions(rows: int, columns: int, key: Array) -> Float[Array, 'rows columns']:
  """Returns vectors of the distribution of `orthogonal_normal`, in float32, for a key that may be traced."""
  direction_key, norm_key = jax.random.split(key)
  shape = -(-rows // columns), columns, columns
  q, r = jnp.linalg.qr(jax.random.normal(direction_key, shape, jnp.float32))
  # With these signs the rotation is uniformly distributed.
  signs = jnp.sign(jnp.diagonal(r, axis1=1, axis2=2))
  blocks = signs[..., None] * q.swapaxes(1, 2)
  norms = jnp.linalg.norm(jax.random.normal(norm_key, (rows, columns), jnp.float32), axis=1)
  return blocks.reshape(-1, columns)[:rows] * norms[:, None]
