"""Which experts process a token: the interface, top-k routing."""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.hyperparameters import scalar
from t2x.base.ranges import Size, TunableNonNegative
from t2x.layers.dtypes import Dtypes, exact_einsum
from t2x.layers.initializers import lecun_normal
from t2x.layers.interfaces import NO_AUX, Aux, Call
from t2x.layers.parameters import Initializer, param
from t2x.layers.tokens import Tokens

__all__ = ['Router', 'Routing', 'TopK']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Routing:
  """The experts of each token.

  Attributes:
    expert: index of each chosen expert, the most important first; the number of experts is no expert.
    weight: factor of the output of each chosen expert, float32.
    aux: auxiliary losses and metrics of the router.
  """

  # Any: tree functions also put other objects than arrays into the fields.
  expert: Any  # Int[Array, 'batch length choices']
  weight: Any  # Float[Array, 'batch length choices']
  aux: Aux = NO_AUX


@runtime_checkable
class Router(Protocol):
  """Chooses the experts of each token. Built as `Router(d_model, num_experts, rngs=rngs)`."""

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Routing:
    """Returns the experts of each token. Those of padding have no effect, but count in no loss and no metric."""
    ...


class TopK(nnx.Module):
  """The k experts with the highest softmax probabilities (https://arxiv.org/abs/1701.06538; with k = 2 as in
  Mixtral, https://arxiv.org/abs/2401.04088).

  Returns the auxiliary loss 'balance' of each row: num_experts times the sum over experts of its share of the
  choices times its mean probability (https://arxiv.org/abs/2101.03961, equation 4, for k choices), which is 1 for
  a uniform distribution.

  Args:
    d_model: width of the input.
    num_experts: number of experts.
    k: number of experts of a token.
    normalise: whether the weights of the chosen experts are divided by their sum.
    balance: coefficient of the auxiliary loss.
    kernel_init: initialiser of the projection to a score for each expert.
  """

  implements = (Router,)

  def __init__(
    self,
    d_model: int,
    num_experts: int,
    *,
    k: Size = 2,
    normalise: bool = True,
    balance: TunableNonNegative = 0.01,
    kernel_init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    if k > num_experts:
      raise UserError(f'TopK.k = {k}: must be at most {num_experts}, the number of experts')
    if k == 1 and normalise:
      raise UserError(
        'TopK.normalise = True with TopK.k = 1 sets each weight to 1, so that the router would have no gradient '
        'from the loss: set TopK.normalise = False'
      )
    self.k, self.normalise, self.balance = k, normalise, balance
    # The scores are not split over experts: their softmax needs all of them.
    shape, axes = (d_model, num_experts), ('embed', 'choices')
    self.kernel = param(kernel_init, shape, axes, rngs, matrix=shape, keep_float32=True)

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Routing:
    kernel = self.kernel[...].astype(Dtypes.softmax)
    scores = exact_einsum('bld,de->ble', x.astype(Dtypes.softmax), kernel)
    probabilities = jax.nn.softmax(scores, axis=-1)
    expert = top_k(probabilities, self.k)
    weight = jnp.take_along_axis(probabilities, expert, axis=-1)
    if self.normalise:
      weight = weight / weight.sum(axis=-1, keepdims=True)
    loss = scalar(self.balance) * balance(probabilities, expert, present(call.tokens, x))
    return Routing(expert, weight, Aux({'balance': loss}))


def top_k(scores: Float[Array, '*rest experts'], k: int) -> Int[Array, '*rest k']:
  """Returns the indices of the k highest scores, the highest first, of equal ones the first.

  Not by `jax.lax.top_k`, for which each device gathers the scores of the whole batch.
  """
  rest, indices = jax.lax.stop_gradient(scores), []
  for _ in range(k):
    indices.append(rest.argmax(axis=-1))
    rest = jnp.where(jax.nn.one_hot(indices[-1], scores.shape[-1], dtype=bool), -jnp.inf, rest)
  return jnp.stack(indices, axis=-1)


def present(tokens: Tokens, x: Float[Array, 'batch length d_model']) -> Bool[Array, 'batch length']:
  """Returns which tokens are no padding."""
  segments = tokens.segments
  return jnp.broadcast_to(True if segments is None else segments != 0, x.shape[:2])


def balance(
  probabilities: Float[Array, 'batch length experts'],
  expert: Int[Array, 'batch length choices'],
  is_present: Bool[Array, 'batch length'],
) -> Float[Array, ' batch']:
  """Returns num_experts * sum over experts of (share of the choices * mean probability) for each row."""
  num_experts, (_, _, k) = probabilities.shape[-1], expert.shape
  num_tokens = jnp.maximum(is_present.sum(axis=1), 1)[:, None]
  chosen = jax.nn.one_hot(expert, num_experts).sum(axis=2) * is_present[..., None]
  share = chosen.sum(axis=1) / (k * num_tokens)
  mean = (probabilities * is_present[..., None]).sum(axis=1) / num_tokens
  return num_experts * (share * mean).sum(axis=-1)
