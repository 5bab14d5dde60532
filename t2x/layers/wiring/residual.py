"""Residual connections of sublayers: the position of norms and learned factors of the branch.

The norm is before the sublayer (https://arxiv.org/abs/2002.04745), after the addition
(https://arxiv.org/abs/1706.03762), after the sublayer, or before and after it. A learned factor of the branch
is initialised to 0 (https://arxiv.org/abs/2003.04887) or a small value (https://arxiv.org/abs/2103.17239).
Fixup replaces norms by scalars and an initialisation (https://arxiv.org/abs/1901.09321)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.hyperparameters import Tunable
from t2x.base.ranges import Positive, TunableRate
from t2x.layers.dtypes import Dtypes, with_rank
from t2x.layers.initializers import ones, zeros
from t2x.layers.interfaces import BranchWiring, Call, Norm, Result, StreamEnds, Wiring
from t2x.layers.keys import bernoulli, named_key
from t2x.layers.norms import LayerNorm
from t2x.layers.parameters import dropout, param

__all__ = [
  'ActivatedResidual',
  'BranchNorm',
  'FixupWiring',
  'LayerScale',
  'NoNorm',
  'Plain',
  'PostNorm',
  'PreNorm',
  'ReZero',
  'Sandwich',
  'ScaledResidual',
]


class NormedWiring(nnx.Module):
  """Base class of wirings with a norm and dropout on the branch; subclasses define `connect`.

  Args:
    d_model: width of the residual stream.
    norm: builds the norm.
    dropout_rate: dropout on the sublayer's output.
  """

  implements = (Wiring,)
  ends_with_norm = False
  num_streams = 1

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., Norm] = LayerNorm,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    self._make_norms(lambda: norm(d_model, rngs=rngs))
    self.dropout_rate = dropout_rate

  def _make_norms(self, build: Callable[[], Norm]) -> None:
    """Creates the norms."""
    self.norm = build()

  @property
  def ends(self) -> Callable[..., StreamEnds]:
    return Copies

  def connect(self, x: Array, branch: Callable[[Array], Result]) -> Result:
    """Returns the result of `branch`, with `x` replaced by the updated residual stream.

    Args:
      x: the residual stream.
      branch: applies the sublayer, dropout and stochastic depth.
    """
    raise NotImplementedError

  def __call__(
    self,
    x: Float[Array, 'batch length *streams d_model'],
    sublayer: Callable[[Array], Result],
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> Result:
    return self.connect(x, lambda h: self._branch(h, sublayer, key, keep))

  def _branch(
    self, x: Array, sublayer: Callable[[Array], Result], key: Array | None, keep: Array | None
  ) -> Result:
    result = sublayer(x)
    y = apply_rates(self._after(result.x), self.dropout_rate, key, keep)
    return dataclasses.replace(result, x=y)

  def _after(self, y: Array) -> Array:
    """Transforms the sublayer's output before dropout."""
    return y


class Copies(nnx.Module):
  """Streams that begin as copies of the input and whose sum is the output.

  Args:
    d_model: width of a stream.
    num_streams: number of streams; 1: x has no dimension of streams.
  """

  def __init__(self, d_model: int, num_streams: int, *, rngs: nnx.Rngs):
    self.num_streams = num_streams

  def expand(self, x: Array) -> Array:
    if self.num_streams == 1:
      return x
    return jnp.broadcast_to(x[:, :, None], (*x.shape[:2], self.num_streams, x.shape[2]))

  def collapse(self, x: Array) -> Array:
    return x if self.num_streams == 1 else x.sum(axis=2)


class _Residual(NormedWiring):
  """Base class: x + dropout(after(sublayer(before(x)))); subclasses define before and after."""

  implements = (BranchWiring,)

  def _before(self, x: Array) -> Array:
    """Returns the input of the sublayer."""
    return x

  def branch(self, x, sublayer, key=None, keep=None):
    return self._branch(self._before(x), sublayer, key, keep)

  def connect(self, x, branch):
    result = branch(self._before(x))
    return dataclasses.replace(result, x=x + result.x)


class _NormBefore(_Residual):
  """Base class with a norm before the sublayer, or None."""

  norm: Any

  def _before(self, x: Array) -> Array:
    """Returns the input of the sublayer."""
    return x if self.norm is None else self.norm(x)


class NoNorm(_Residual):
  """No norm: x + dropout(sublayer(x)), for initialisations that make norms unnecessary (`t_fixup_encoder`)."""

  def __init__(self, d_model: int, *, dropout_rate: TunableRate = 0.0, rngs: nnx.Rngs):
    self.dropout_rate = dropout_rate


class Plain(NormedWiring):
  """Neither a residual connection nor a norm: dropout(sublayer(x)), as between recurrent layers.

  Args:
    d_model: width of the stream.
  """

  def __init__(self, d_model: int, *, dropout_rate: TunableRate = 0.0, rngs: nnx.Rngs):
    self.dropout_rate = dropout_rate

  def connect(self, x, branch):
    return branch(x)


class ActivatedResidual(Plain):
  """Activation after the addition, without a norm: activation(x + dropout(sublayer(x))), as in ResNet
  (https://arxiv.org/abs/1512.03385), whose convolutions have norms of their own.

  Args:
    d_model: width of the residual stream.
    activation: activation of the sum.
  """

  def __init__(
    self,
    d_model: int,
    *,
    activation: Callable[[Array], Array] = jax.nn.relu,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    super().__init__(d_model, dropout_rate=dropout_rate, rngs=rngs)
    self.activation = activation

  def connect(self, x, branch):
    result = branch(x)
    return dataclasses.replace(result, x=self.activation(x + result.x))


class ScaledResidual(Plain):
  """Residual connection without a norm: sqrt(0.5) * (x + sublayer(dropout(x))), whose variance is that of x if both
  terms have the same and are independent (Gehring et al. 2017, https://arxiv.org/abs/1705.03122, section 3.4).

  Args:
    d_model: width of the residual stream.
    dropout_rate: dropout on the sublayer's input.
  """

  def _branch(self, x, sublayer, key, keep):
    result = sublayer(dropout(x, self.dropout_rate, key))
    return dataclasses.replace(result, x=apply_rates(result.x, 0.0, None, keep))

  def connect(self, x, branch):
    result = branch(x)
    return dataclasses.replace(result, x=0.5**0.5 * (x + result.x))


class PreNorm(_NormBefore):
  """Norm before the sublayer: x + dropout(sublayer(norm(x))), as in GPT-2, T5, ViT and Llama."""


class PostNorm(NormedWiring):
  """Norm after the addition: norm(x + dropout(sublayer(x))), as in the original Transformer and BERT.

  Arguments are those of `PreNorm`.
  """

  ends_with_norm = True

  def connect(self, x, branch):
    result = branch(x)
    return dataclasses.replace(result, x=self.norm(self._shortcut(x) + result.x))

  def _shortcut(self, x: Array) -> Array:
    """Returns what is added to the sublayer's output."""
    return x


class BranchNorm(_Residual):
  """Norm after the sublayer: x + dropout(norm(sublayer(x))), as in Swin v2
  (https://arxiv.org/abs/2111.09883, section 3.2) and OLMo 2 (https://arxiv.org/abs/2501.00656).

  Arguments are those of `PreNorm`.
  """

  def _after(self, y: Array) -> Array:
    return self.norm(y)


class Sandwich(PreNorm):
  """Norms before and after the sublayer: x + dropout(branch_norm(sublayer(norm(x)))), as in CogView
  (https://arxiv.org/abs/2105.13290, section 2.4) and Gemma 2 (https://arxiv.org/abs/2408.00118).

  With `Decoder.input_norm` and `Decoder.final_norm` it is Peri-LN (https://arxiv.org/abs/2502.02737).

  Args:
    norm: builds both norms.
    dropout_rate: dropout on the normalised branch.
  """

  def _make_norms(self, build):
    super()._make_norms(build)
    self.branch_norm = build()

  def _after(self, y: Array) -> Array:
    return self.branch_norm(y)


class LayerScale(_NormBefore):
  """Learned factor of each feature of the branch: x + dropout(gamma * sublayer(norm(x))) (CaiT,
  https://arxiv.org/abs/2103.17239, section 2).

  Args:
    norm: builds the norm before the sublayer; None: no norm (ConvNeXt, https://arxiv.org/abs/2201.03545).
    initial_value: initial value of gamma; the paper uses 0.1 up to 18 layers, 1e-5 up to 24 and 1e-6
      above.
    dropout_rate: dropout on the scaled branch.
  """

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., Norm] | None = LayerNorm,
    initial_value: Positive = 1e-5,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    def constant(key, shape, dtype):
      return jnp.full(shape, initial_value, dtype)

    self.norm = norm and norm(d_model, rngs=rngs)
    self.dropout_rate = dropout_rate
    self.gamma = param(constant, (d_model,), ('embed',), rngs, kind='vector', keep_float32=True)

  def _after(self, y: Array) -> Array:
    return (y * with_rank(float32(self.gamma), y.ndim)).astype(y.dtype)


class ReZero(_NormBefore):
  """Learned scalar factor of the branch, initially 0: x + alpha * dropout(sublayer(x))
  (https://arxiv.org/abs/2003.04887).

  Narang et al. 2021 (https://arxiv.org/abs/2102.11972) also evaluate it with a norm before the sublayer.
  Train alpha with AdamW: Adafactor's steps are relative to the scale of a parameter.

  Args:
    norm: builds the norm before the sublayer; None: no norm.
  """

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., Norm] | None = None,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    self.norm = norm and norm(d_model, rngs=rngs)
    self.alpha = param(zeros(), (), (), rngs, kind='scalar', keep_float32=True)
    self.dropout_rate = dropout_rate

  def _after(self, y: Array) -> Array:
    return (y * float32(self.alpha)).astype(y.dtype)


class FixupWiring(_Residual):
  """Learned scalars instead of norms: x + dropout(scale * sublayer(x + before) + after) (Fixup,
  https://arxiv.org/abs/1901.09321).

  Use it with the initialisers of the paper: `fixup` for the first projections of each sublayer
  (`MLP.kernel_init`, `MultiHeadAttention.kernel_init`) and `zeros` for the last (`out_init`). Biases of the
  projections replace the paper's scalar biases inside a sublayer.

  Args:
    dropout_rate: dropout on the branch.
  """

  def __init__(self, d_model: int, *, dropout_rate: TunableRate = 0.0, rngs: nnx.Rngs):
    self.before = param(zeros(), (), (), rngs, kind='scalar', keep_float32=True)
    self.scale = param(ones(), (), (), rngs, kind='scalar', keep_float32=True)
    self.after = param(zeros(), (), (), rngs, kind='scalar', keep_float32=True)
    self.dropout_rate = dropout_rate

  def _before(self, x: Array) -> Array:
    return (x + float32(self.before)).astype(x.dtype)

  def _after(self, y: Array) -> Array:
    return (y * float32(self.scale) + float32(self.after)).astype(y.dtype)


def float32(parameter: nnx.Param) -> Float[Array, '*shape']:
  """Returns the parameter in float32."""
  return parameter[...].astype(Dtypes.reductions)


def apply_rates(y: Array, rate: Tunable, key: Array | None, keep: Array | None) -> Array:
  """Applies dropout and stochastic depth to the output of a sublayer."""
  y = dropout(y, rate, key)
  return y if keep is None else y * keep.astype(y.dtype)


def depth_factor(call: Call, branch: str, batch: int) -> Float[Array, 'batch 1 1'] | None:
  """Returns the factor of a residual branch of a block for each row (stochastic depth): 0 with probability
  `call.drop`, else 1 / (1 - drop). None without stochastic depth.

  Args:
    call: the call of the block.
    branch: name of the branch in the block.
    batch: number of rows.
  """
  # With a dot, the name is not that of a sub-part.
  key = named_key(call.key, f'{branch}.stochastic_depth')
  if key is None or call.drop is None:
    return None
  return bernoulli(key, 1.0 - call.drop, (batch, 1, 1)) / (1.0 - call.drop)
