"""A head that mixes several softmaxes (Yang et al. 2018, https://arxiv.org/abs/1711.03953)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers import Initializer, Linear, lecun_normal
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import float32_sums
from t2x.models.heads import LogitHead, TiedHead
from t2x.models.interfaces import Head

__all__ = ['MixtureOfSoftmaxes']


class MixtureOfSoftmaxes(LogitHead):
  """Computes log sum_k prior_k(x) softmax(head(tanh(W_k x + b_k))) with prior(x) = softmax(P x).

  The outputs are log-probabilities, which are valid logits. The log of a mixture is not limited in rank,
  unlike a single softmax over a low-rank product.

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    num_softmaxes: number of mixture components. They are computed sequentially, and recomputed for the
      gradient to save memory.
    head: builds the head that all components share: `TiedHead` or `LMHead`. The mixture uses its `chunk`.
    init: initialiser of W and P.

  Raises:
    UserError: `num_softmaxes` is less than 1.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    num_softmaxes: Size,
    head: Callable[..., Head] = TiedHead,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    if num_softmaxes < 1:
      raise UserError(f'MixtureOfSoftmaxes.num_softmaxes = {num_softmaxes}: must be at least 1')
    self.vocab_size = vocab_size
    self.prior = Linear(
      (d_model,), (num_softmaxes,), ('embed', 'softmaxes'), init=init, use_bias=False, rngs=rngs
    )
    self.latent = Linear(
      (d_model,), (num_softmaxes, d_model), ('embed', 'softmaxes', 'embed'), init=init, rngs=rngs
    )
    self.head = head(d_model, vocab_size, rngs=rngs)
    self.chunk = self.head.chunk

  def cross_entropy(self, x, embedding, labels, weights, *, z_loss=0.0, **settings):
    """Returns the loss sums; see `LogitHead.cross_entropy`.

    Raises:
      UserError: `z_loss` is not 0; the normaliser of log-probabilities is always 1.
    """
    if z_loss != 0.0:
      raise UserError(
        'z_loss has no effect on MixtureOfSoftmaxes, whose outputs are log-probabilities: set it to 0'
      )
    return super().cross_entropy(x, embedding, labels, weights, **settings)

  def logits(self, x, embedding):
    priors = jax.nn.log_softmax(self.prior(x).astype(jnp.float32))
    latents = jnp.tanh(self.latent(x))

    read = float32_sums((self.head, embedding))

    @jax.checkpoint
    def add(total, component):
      (head, embedding), (prior, latent) = read(), component
      logits = constrain(head.logits(latent, embedding), ..., 'vocab').astype(jnp.float32)
      return jnp.logaddexp(total, prior[..., None] + jax.nn.log_softmax(logits)), None

    initial = jnp.full((*x.shape[:-1], self.vocab_size), -jnp.inf)
    components = jnp.moveaxis(priors, -1, 0), jnp.moveaxis(latents, -2, 0)
    return jax.lax.scan(add, initial, components)[0]
