"""Two encoders whose vectors are compared (CLIP, https://arxiv.org/abs/2103.00020)."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Shaped

from t2x.base.errors import UserError
from t2x.base.ranges import Finite, Positive, Size
from t2x.layers import Embedder, Initializer, Linear, Tokens, named_key, normal, param
from t2x.layers.dtypes import Dtypes
from t2x.models.bodies import Encoder
from t2x.models.interfaces import Body, Model, Output, Pooling
from t2x.models.language_model import limited
from t2x.models.pooling import mean_tokens
from t2x.models.spec import ModelSpec

__all__ = ['Tower', 'TwoTower', 'VectorProjection']


class Tower(nnx.Module):
  """Computes a vector per row of token ids, images or other inputs.

  Args:
    d_model: width of the residual stream.
    embedding: builds the embedder of the inputs.
    body: builds the body.
    pool: builds the pooling: `first_token`, `mean_tokens`, `last_token` or `AttentionPool`.
  """

  def __init__(
    self,
    *,
    d_model: Size,
    embedding: Callable[..., Embedder],
    body: Callable[..., Body] = Encoder,
    pool: Callable[..., Pooling] = mean_tokens,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(d_model, rngs=rngs)
    self.body = body(d_model, rngs=rngs)
    self.pool = pool(self.body.output_dim, rngs=rngs)

  def __call__(
    self, inputs: Shaped[Array, 'batch *shape'], tokens: Tokens | None, key: Array | None
  ) -> Output:
    """Returns the vectors [batch, output_dim]."""
    x, tokens = self.embedding(inputs, tokens)
    out = self.body(x, tokens=tokens, key=named_key(key, 'body'))
    final = tokens if out.tokens is None else out.tokens
    segments = None if final.segments is None else jnp.broadcast_to(final.segments, out.x.shape[:2])
    pooled = self.pool(out.x, segments, named_key(key, 'pool'))
    return Output(pooled, None, out.aux, out.recorded)


class VectorProjection(Linear):
  """Linear map from the vectors of a tower to the compared vectors.

  Args:
    inputs: width of the vectors of the tower.
    outputs: width of the compared vectors.
    init: initialiser, that of the towers.
    use_bias: whether to add a bias, as SigLIP does to texts. CLIP does not.
  """

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: Initializer,
    *,
    use_bias: bool = False,
    rngs: nnx.Rngs,
  ):
    axes = ('embed', None)
    super().__init__((inputs,), (outputs,), axes, init=init, use_bias=use_bias, rngs=rngs)


class TwoTower(nnx.Module):
  """Computes vectors of unit length of two inputs, 'a' and 'b', and factor and bias of their products in a loss.

  Args:
    a: builds the tower of the first input.
    b: builds the tower of the second input.
    dim: width of the vectors that are compared.
    a_projection: builds the projection of the vectors of `a`; None: they are compared as they are, and
      have the width `dim`.
    b_projection: likewise for `b`.
    temperature: initial temperature; the factor is its inverse, and is learned on a logarithmic scale.
    max_factor: maximum of the factor, to which each train step clips it; None: no maximum. 100 in CLIP's training.
    bias: initial value of a learned number that is added to the products (SigLIP, https://arxiv.org/abs/2303.15343:
      -10); None: no bias.
    init: initialiser of the projections.
  """

  implements = (Model,)

  def __init__(
    self,
    *,
    a: Callable[..., Tower],
    b: Callable[..., Tower],
    dim: Size,
    a_projection: Callable[..., VectorProjection] | None = VectorProjection,
    b_projection: Callable[..., VectorProjection] | None = VectorProjection,
    temperature: Positive = 0.07,
    max_factor: Positive | None = 100.0,
    bias: Finite | None = None,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    if max_factor is not None and max_factor * temperature < 1:
      raise UserError(
        f'TwoTower.temperature = {temperature}: the factor {1 / temperature:.4g} is above max_factor = {max_factor}'
      )
    self.a, self.b, self.max_factor = a(rngs=rngs), b(rngs=rngs), max_factor

    def projection(name: str, tower: Tower, build: Callable[..., VectorProjection] | None) -> Any:
      width = tower.body.output_dim
      if build is not None:
        return build(width, dim, init, rngs=rngs)
      if width != dim:
        raise UserError(
          f'TwoTower.{name} = None needs vectors of width TwoTower.dim = {dim}, but those of the tower have {width}'
        )
      return None

    self.a_projection = projection('a_projection', self.a, a_projection)
    self.b_projection = projection('b_projection', self.b, b_projection)

    def number(value: float, maximum: float | None = None) -> nnx.Param:
      constant = nnx.initializers.constant(value)
      return param(constant, (), (), rngs, kind='scalar', keep_float32=True, maximum=maximum)

    self.log_factor = number(math.log(1 / temperature), max_factor and math.log(max_factor))
    self.bias = None if bias is None else number(bias)

  @property
  def spec(self) -> ModelSpec:
    towers = {'a': self.a, 'b': self.b}
    return ModelSpec(
      inputs={name: limited(tower.embedding, tower.body) for name, tower in towers.items()},
      outputs=frozenset({'paired vectors'}),
      patterns=tuple(pattern for tower in towers.values() for pattern in tower.body.patterns),
    )

  @property
  def factor(self) -> Float[Array, '']:
    """The factor of the products of vectors, float32."""
    factor = jnp.exp(self.log_factor[...].astype(Dtypes.logits))
    if self.max_factor is None:
      return factor
    # The gradient is that of a step that clips the parameter: at the maximum it is not zero.
    return factor - jax.lax.stop_gradient(jnp.maximum(factor - self.max_factor, 0))

  def __call__(
    self,
    a: Shaped[Array, 'batch *a'],
    b: Shaped[Array, 'batch *b'],
    *,
    tokens: tuple[Tokens | None, Tokens | None] = (None, None),
    key: Array | None = None,
  ) -> tuple[Output, Output]:
    """Returns the vectors [batch, dim] of each input, float32 of length 1.

    Args:
      a: the first input of each pair.
      b: the second input.
      tokens: metadata of the tokens of both; None: unpadded rows.
      key: random keys of dropout, one per row [batch]; None: no dropout.
    """
    outs: list[Any] = []
    towers = (self.a, a, self.a_projection), (self.b, b, self.b_projection)
    for name, own, (tower, inputs, projection) in zip('ab', tokens, towers, strict=True):
      out = tower(inputs, own, named_key(key, name))
      x = (out.x if projection is None else projection(out.x)).astype(Dtypes.logits)
      # The maximum of the squares: a square root has no gradient at 0, the vector of a row of padding.
      length = jnp.sqrt(jnp.maximum(jnp.square(x).sum(axis=-1, keepdims=True), 1e-24))
      outs.append(Output(x / length, None, out.aux))
    return outs[0], outs[1]
