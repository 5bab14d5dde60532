"""Cross-entropy as a sum and a total weight, so that accumulation and sharding do not change the result."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.base.hyperparameters import Tunable, scalar
from t2x.base.step import is_plain
from t2x.layers.dtypes import Dtypes

# Name -> (weighted sum, total weight). A metric is their quotient.
Sums = dict[str, tuple[Array, Array]]


def cross_entropy(
  logits: Float[Array, '*batch classes'], labels: Int[Array, '*batch'], smoothing: Tunable = 0.0
) -> Float[Array, '*batch']:
  """Returns -log p(label) in float32, with label smoothing (Szegedy et al. 2016,
  https://arxiv.org/abs/1512.00567).

  With `smoothing` s the target distribution is (1 - s) on the label plus s spread evenly over all classes.
  """
  return _losses(logits, labels, smoothing)[0]


def classification_sums(
  logits: Float[Array, '*batch classes'],
  labels: Int[Array, '*batch'],
  weights: Float[Array, '*batch'],
  smoothing: Tunable = 0.0,
  z_loss: Tunable = 0.0,
) -> Sums:
  """Returns weighted sums of the loss and of correct predictions.

  Args:
    logits: unnormalised log-probabilities.
    labels: class index of each element.
    weights: weight of each element; 0 excludes it.
    smoothing: label smoothing, as in `cross_entropy`.
    z_loss: adds z_loss * logsumexp(logits)^2 to the loss of each element, which keeps the
      normaliser close to 1 (PaLM, https://arxiv.org/abs/2204.02311, section 5).

  Returns:
    `loss` and `accuracy`, in which ties and NaN are wrong; with `z_loss` also `z_loss`, its contribution to the loss.
    Only the sum of `loss` has a gradient.
  """
  total = weights.sum()
  losses, normaliser, picked = _losses(logits, labels, smoothing)
  correct = _is_largest(logits, labels, picked) * weights
  sums = {'loss': ((losses * weights).sum(), total), 'accuracy': (correct.sum(), total)}
  if z_loss != 0.0:
    added = (scalar(z_loss) * jnp.square(normaliser) * weights).sum()
    sums |= {
      'loss': (sums['loss'][0] + added, total),
      'z_loss': (jax.lax.stop_gradient(added), total),
    }
  return sums


def _is_largest(
  logits: Float[Array, '*batch classes'],
  labels: Int[Array, '*batch'],
  picked: Float[Array, '*batch'],
) -> Bool[Array, '*batch']:
  """Returns `choice(logits) == labels` by comparing with the label's logit: argmax is not vectorised on CPUs."""
  index = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
  return jnp.all((picked[..., None] > logits) | (index == labels[..., None]), axis=-1)


def _losses(logits: Array, labels: Array, smoothing: Tunable) -> tuple[Array, Array, Array]:
  """Returns the cross-entropy, the log normaliser and the logit of the label of each element, in float32."""
  logits = logits.astype(Dtypes.logits)
  normaliser = jax.nn.logsumexp(logits, axis=-1)
  pick = _pick if is_plain() else _pick_with_gradient
  picked = pick(logits, labels, logits.shape[-1])
  loss = normaliser - picked
  if smoothing != 0.0:
    share = scalar(smoothing)
    loss = (1.0 - share) * loss + share * (normaliser - logits.mean(axis=-1))
  return loss, normaliser, picked


def _pick(logits: Array, labels: Array, classes: int) -> Array:
  return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


# JAX's own gradient is a scatter. A comparison becomes one operation with the gradient of the normaliser and with the
# rounding to the compute dtype, so that a GPU writes the gradient of the logits once.
_pick_with_gradient = jax.custom_vjp(_pick, nondiff_argnums=(2,))


def _pick_forward(logits: Array, labels: Array, classes: int) -> tuple[Array, Array]:
  return _pick(logits, labels, classes), labels


def _pick_backward(classes: int, labels: Array, gradient: Array) -> tuple[Array, None]:
  shape = (*labels.shape, classes)
  index = jax.lax.broadcasted_iota(labels.dtype, shape, len(shape) - 1)
  return jnp.where(index == labels[..., None], gradient[..., None], 0.0), None


_pick_with_gradient.defvjp(_pick_forward, _pick_backward)
