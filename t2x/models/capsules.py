"""Capsules: routing by agreement (Sabour et al. 2017, https://arxiv.org/abs/1710.09829), attention whose softmax runs
over outputs instead of inputs."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers import Initializer, lecun_normal, param
from t2x.layers.dtypes import Dtypes
from t2x.models.interfaces import ClassHead, Pooling, RowSegments

__all__ = ['CapsuleLengths', 'CapsulePool']

# Lower bound of a squared length, for finite gradients at 0.
TINY = 1e-12


class CapsulePool(nnx.Module):
  """Pools tokens into capsules by agreement, and returns the capsules of a row side by side.

  The features of a token are cut into capsules u_i, vectors of `capsule_dim` features, which `squash` scales to lengths
  below 1. Capsule i votes W_i u_i for each output j, with its share c_ij = softmax_j(b_ij) of one vote per capsule:
  outputs compete for inputs. In each round v_j = squash(sum_i c_ij W_ij u_i), and b_ij, at first 0, grows by the
  agreement v_j W_ij u_i (procedure 1 of the paper, with gradients through all rounds). Tokens share their matrices W,
  so that their number is free; in the paper each place has its own.

  Args:
    d_model: width of the tokens and of all outputs together.
    num_capsules: number of outputs, of d_model / num_capsules features each.
    capsule_dim: features of an input capsule.
    num_rounds: number of rounds.
    init: initialiser of W.

  Raises:
    UserError: num_capsules or capsule_dim does not divide d_model.
  """

  implements = (Pooling,)

  def __init__(
    self,
    d_model: int,
    *,
    num_capsules: Size,
    capsule_dim: Size = 8,
    num_rounds: Size = 3,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    for name, value in (('num_capsules', num_capsules), ('capsule_dim', capsule_dim)):
      _check_divides(f'CapsulePool.{name}', value, d_model)
    self.num_capsules, self.num_rounds = num_capsules, num_rounds
    shape = d_model // capsule_dim, capsule_dim, d_model
    axes = None, 'head_dim', 'embed'
    self.kernel = param(init, shape, axes, rngs, matrix=(capsule_dim, d_model))

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    segments: RowSegments = None,
    key: Array | None = None,
  ) -> Float[Array, 'batch d_model']:
    """Returns the outputs of the rows; tokens of segment 0 are padding."""
    num, size, _ = self.kernel.shape
    capsules = squash(x.astype(Dtypes.reductions).reshape(*x.shape[:2], num, size))
    votes = jnp.einsum('blic,icd->blid', capsules, self.kernel[...].astype(capsules.dtype))
    votes = votes.reshape(len(x), -1, self.num_capsules, x.shape[-1] // self.num_capsules)
    present = jnp.ones((1, 1, 1)) if segments is None else (segments != 0)[..., None]
    present = jnp.broadcast_to(present, (*x.shape[:2], num)).reshape(len(x), -1, 1)
    return routed(votes, present, self.num_rounds).reshape(len(x), -1).astype(x.dtype)


def routed(
  votes: Float[Array, 'batch inputs outputs features'],
  present: Array,
  num_rounds: int,
) -> Float[Array, 'batch outputs features']:
  """Returns the outputs of routing by agreement; inputs that are not `present` [batch, inputs, 1] have no share."""
  logits, outputs = jnp.zeros(votes.shape[:3], votes.dtype), None
  for _ in range(num_rounds):
    if outputs is not None:
      logits += jnp.einsum('bijd,bjd->bij', votes, outputs)
    shares = jax.nn.softmax(logits, axis=2) * present
    outputs = squash(jnp.einsum('bij,bijd->bjd', shares, votes))
  assert outputs is not None  # There is at least one round.
  return outputs


def squash(s: Float[Array, '*rest features']) -> Float[Array, '*rest features']:
  """Scales vectors to the length |s|^2 / (1 + |s|^2)."""
  square = jnp.square(s).sum(axis=-1, keepdims=True)
  return s * jnp.sqrt(jnp.maximum(square, TINY)) / (1 + square)


class CapsuleLengths(nnx.Module):
  """Lengths of the capsules of a pooled vector, one for each class, as its scores; for `CapsulePool` and `MarginLoss`.

  Args:
    d_model: width of the pooled vector.
    num_classes: number of classes, which is `CapsulePool.num_capsules`.

  Raises:
    UserError: num_classes does not divide d_model.
  """

  implements = (ClassHead,)

  def __init__(self, d_model: int, *, num_classes: Size, rngs: nnx.Rngs):
    _check_divides('CapsuleLengths.num_classes', num_classes, d_model)
    self.num_classes = num_classes

  def __call__(
    self, x: Float[Array, 'batch d_model'], key: Array | None = None
  ) -> Float[Array, 'batch classes']:
    square = jnp.square(x.reshape(len(x), self.num_classes, -1)).sum(axis=-1)
    return jnp.sqrt(jnp.maximum(square, TINY))


def _check_divides(name: str, value: int, d_model: int) -> None:
  if d_model % value:
    raise UserError(f'{name} = {value} does not divide d_model = {d_model}: choose a divisor')
