"""A head that mixes several softmaxes (Yang et al. 2018, https://arxiv.org/abs/1711.03953)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t2x.errors import UserError
from t2x.layers import Initializer, Linear, lecun_normal
from t2x.layers.constraints import constrain
from t2x.models.heads import LogitHead, TiedHead
from t2x.models.interfaces import Head
from t2x.ranges import Size


class MixtureOfSoftmaxes(LogitHead):
  """log sum_k prior_k(x) softmax(head(tanh(W_k x + b_k))), prior(x) = softmax(P x).

  What it gives are logarithms of probabilities, which are logits of themselves. A single softmax of
  a low-rank product cannot give every distribution, the logarithm of a mixture has any rank.

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    num_softmaxes: how many are mixed. They are computed one after the other, and again for the
      gradient: the memory is that of a few, the time that of all.
    head: builds what makes logits of a vector, for all softmaxes: `TiedHead` or `LMHead`. Its `chunk`
      is that of the mixture.
    init: initialiser of W and P.

  Raises:
    UserError: no softmax at all.
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
      (d_model,), (num_softmaxes,), ('embed', None), init=init, use_bias=False, rngs=rngs
    )
    self.latent = Linear(
      (d_model,), (num_softmaxes, d_model), ('embed', None, None), init=init, rngs=rngs
    )
    self.head = head(d_model, vocab_size, rngs=rngs)
    self.chunk = self.head.chunk

  def cross_entropy(self, x, embedding, labels, weights, *, z_loss=0.0, **settings):
    """As `LogitHead`.

    Raises:
      UserError: a z-loss, which is 0 for log-probabilities.
    """
    if z_loss != 0.0:
      raise UserError(
        'z_loss has no effect on MixtureOfSoftmaxes, whose outputs are log-probabilities: set it to 0'
      )
    return super().cross_entropy(x, embedding, labels, weights, **settings)

  def logits(self, x, embedding):
    """Log-probabilities in float32."""
    priors = jax.nn.log_softmax(self.prior(x).astype(jnp.float32))
    latents = jnp.tanh(self.latent(x))

    @jax.checkpoint
    def add(total, one):
      prior, latent = one
      logits = constrain(self.head.logits(latent, embedding), ..., 'vocab').astype(jnp.float32)
      return jnp.logaddexp(total, prior[..., None] + jax.nn.log_softmax(logits)), None

    nothing = jnp.full((*x.shape[:-1], self.vocab_size), -jnp.inf)
    each = jnp.moveaxis(priors, -1, 0), jnp.moveaxis(latents, -2, 0)
    return jax.lax.scan(add, nothing, each)[0]
