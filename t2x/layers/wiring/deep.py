"""Residual connections and initialisers for deep Transformers, all functions of the depth of the stack.

| system | wiring | initialiser |
|---|---|---|
| DeepNorm, https://arxiv.org/abs/2203.00555 | `DeepNorm` | `deep_norm_init` |
| Admin, https://arxiv.org/abs/2004.08249 | `Admin` | |
| Sub-LN, https://arxiv.org/abs/2210.06423 | `PreNorm`, and norms inside the sublayers | `sub_ln_init` |
| T-Fixup, https://proceedings.mlr.press/v119/huang20f.html | `NoNorm` | `t_fixup_encoder`, `t_fixup_decoder` |

The initialisers are for four projections of each layer: `value_init` and `out_init` of attention, `kernel_init` and
`out_init` of the feed-forward layer. Queries and keys keep `MultiHeadAttention.kernel_init`.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Annotated

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Positive, Size, TunableRate
from t2x.layers.building import branch_index, build_context, residual_branches
from t2x.layers.dtypes import with_rank
from t2x.layers.initializers import DepthFactor, xavier_uniform
from t2x.layers.interfaces import Norm
from t2x.layers.norms import LayerNorm
from t2x.layers.parameters import param
from t2x.layers.wiring.residual import PostNorm, float32

__all__ = [
  'Admin',
  'DeepNorm',
  'deep_norm_init',
  'sub_ln_init',
  't_fixup_decoder',
  't_fixup_encoder',
]


class DeepNorm(PostNorm):
  """Post-norm with a scaled shortcut: norm(alpha x + dropout(sublayer(x))) (https://arxiv.org/abs/2203.00555).

  alpha is the fourth root of the number of residual branches of the body: (2 N)^(1/4) for N layers, (3 N)^(1/4)
  with cross-attention. The encoder of an encoder-decoder has 0.81 (N^4 M)^(1/16). Use it with `deep_norm_init`.

  Args:
    decoder_layers: M, the number of layers of the decoder that reads this encoder. None: no such decoder.

  Raises:
    UserError: no stack is under construction.
  """

  def __init__(
    self,
    d_model: int,
    *,
    decoder_layers: Size | None = None,
    norm: Callable[..., Norm] = LayerNorm,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    super().__init__(d_model, norm=norm, dropout_rate=dropout_rate, rngs=rngs)
    depth = residual_branches('DeepNorm')
    if decoder_layers is None:
      self.alpha = depth**0.25
    else:
      self.alpha = 0.81 * (_num_layers('DeepNorm') ** 4 * decoder_layers) ** 0.0625

  def _shortcut(self, x: Array) -> Array:
    return self.alpha * x


class Admin(PostNorm):
  """Post-norm with learned factors of the shortcut's features: norm(omega * x + dropout(sublayer(x)))
  (https://arxiv.org/abs/2004.08249).

  Initially omega is equal for all features. With R residual branches in the body, its default is
  sqrt((R + 1) / log(R + 1) - 1), with which the model's output changes by O(log R) (the authors' library
  `admin-torch`). The paper measures it before training: omega of branch i is the root of 1 + the sum over j < i of
  Var[sublayer_j]. `experiments/norm_and_warmup/admin.py` prints these values for a config.

  Args:
    omega: initial values of the branches, in the order of application. None: the default.

  Raises:
    UserError: no stack is under construction, or `omega` does not have a value for each residual branch.
  """

  def __init__(
    self,
    d_model: int,
    *,
    omega: Annotated[Sequence[Positive], NonEmpty] | None = None,
    norm: Callable[..., Norm] = LayerNorm,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    super().__init__(d_model, norm=norm, dropout_rate=dropout_rate, rngs=rngs)
    depth = residual_branches('Admin')
    if omega is None:
      value: float | Array = ((depth + 1) / math.log(depth + 1) - 1) ** 0.5
    elif len(omega) == depth or build_context().counting:
      value = jnp.asarray(omega, jnp.float32)[branch_index()]
    else:
      raise UserError(
        f'Admin.omega has {len(omega)} values, but the stack has {depth} residual branches: give one value '
        'per branch'
      )

    def constant(key, shape, dtype):
      return jnp.full(shape, value, dtype)

    self.omega = param(constant, (d_model,), ('embed',), rngs, kind='vector', keep_float32=True)

  def _shortcut(self, x: Array) -> Array:
    return (with_rank(float32(self.omega), x.ndim) * x).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class deep_norm_init(DepthFactor):
  """Multiplies the values of `init` by beta of DeepNorm (https://arxiv.org/abs/2203.00555, figure 2).

  beta is (8 N)^(-1/4) for N layers, (12 N)^(-1/4) with cross-attention, and 0.87 (N^4 M)^(-1/16) in the encoder of an
  encoder-decoder.

  Attributes:
    init: initialiser to scale.
    decoder_layers: M, the number of layers of the decoder that reads this encoder. None: no such decoder.
  """

  init: Callable[..., Array] = xavier_uniform()
  decoder_layers: Size | None = None

  def factor(self) -> float:
    if self.decoder_layers is None:
      return (4 * residual_branches('deep_norm_init')) ** -0.25
    return 0.87 * (_num_layers('deep_norm_init') ** 4 * self.decoder_layers) ** -0.0625


@dataclasses.dataclass(frozen=True)
class sub_ln_init(DepthFactor):
  """Multiplies the values of `init` by gamma of Sub-LN (Magneto, https://arxiv.org/abs/2210.06423, figure 2).

  gamma is sqrt(log(2 N)) for N layers, sqrt(log(3 N)) with cross-attention, and sqrt(log(3 M) log(2 N) / 3) in the
  encoder of an encoder-decoder. The paper does not scale cross-attention. Sub-LN also has a norm of the heads
  (`NormedHeads`) and of the hidden features (`MLP.norm`), and `PreNorm`.

  Attributes:
    init: initialiser to scale.
    decoder_layers: M, the number of layers of the decoder that reads this encoder. None: no such decoder.
  """

  init: Callable[..., Array] = xavier_uniform()
  decoder_layers: Size | None = None

  def factor(self) -> float:
    scale = math.log(residual_branches('sub_ln_init'))
    if self.decoder_layers is not None:
      scale *= math.log(3 * self.decoder_layers) / 3
    return scale**0.5


@dataclasses.dataclass(frozen=True)
class t_fixup_encoder(DepthFactor):
  """Multiplies the values of `init` by 0.67 N^(-1/4) for the N layers of an encoder, or of a decoder without
  cross-attention, without norms (T-Fixup, https://proceedings.mlr.press/v119/huang20f.html, section 3).

  Attributes:
    init: initialiser to scale.
    num_layers: N. None: that of the stack.
  """

  init: Callable[..., Array] = xavier_uniform()
  num_layers: Size | None = None

  def factor(self) -> float:
    return 0.67 * (self.num_layers or _num_layers('t_fixup_encoder')) ** -0.25


@dataclasses.dataclass(frozen=True)
class t_fixup_decoder(DepthFactor):
  """Multiplies the values of `init` by (9 N)^(-1/4) for the N layers of a decoder with cross-attention and for
  token embeddings (T-Fixup, https://proceedings.mlr.press/v119/huang20f.html, section 3).

  Attributes:
    init: initialiser to scale; for embeddings `width_normal`.
    num_layers: N. None: that of the stack. Embeddings are built outside of a stack.
  """

  init: Callable[..., Array] = xavier_uniform()
  num_layers: Size | None = None

  def factor(self) -> float:
    return (9 * (self.num_layers or _num_layers('t_fixup_decoder'))) ** -0.25


def _num_layers(name: str) -> int:
  num_layers = build_context().position.num_layers
  if num_layers is None:
    raise UserError(
      f'{name} depends on the depth of a stack: use it in a Block, or set its number of layers'
    )
  return num_layers
