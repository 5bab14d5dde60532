"""The bodies, embeddings and position encodings inside a model."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.layers import Call, PositionEncoding, Tokens
from t2x.look.attention import Grid
from t2x.models import (
  Decoder,
  Encoder,
  InspectableModel,
  Stack,
  Stages,
)
from t2x.parallel import module_of


@dataclasses.dataclass(frozen=True)
class Side:
  """An encoder or decoder with the parts around it.

  Attributes:
    name: 'encoder' or 'decoder' of an encoder-decoder, else ''.
    body: the body.
    embedding: embeds its inputs.
    encodings: position encodings outside of the blocks.
  """

  name: str
  body: Encoder | Decoder
  embedding: Any
  encodings: tuple[PositionEncoding, ...]

  def embedded(self, inputs: Array) -> tuple[jax.ShapeDtypeStruct, Tokens]:
    """Returns the shape of the embedded inputs of one row, and the metadata of its tokens."""
    tokens = self.embedding(inputs)[1]
    return jax.eval_shape(lambda: self.embedding(inputs)[0]), tokens

  def tokens_of_stages(self, inputs: Array) -> list[Tokens]:
    """Returns the metadata of the tokens of one row in each stage of the body; of a body without stages one."""
    x, tokens = self.embedding(inputs)
    found = [tokens]
    stages = self.body.stack
    for merge in stages.merges if isinstance(stages, Stages) else ():
      if merge is not None:
        result = merge(x, Call(tokens))
        x, tokens = result.x, result.tokens or tokens
      found.append(tokens)
    return found

  def grids(self, image: Float[np.ndarray, 'height width channels']) -> list[Grid]:
    """Returns the grid of the tokens of an image in each stage that has one."""
    stages = self.tokens_of_stages(jnp.asarray(image[None]))
    return [
      Grid(*tokens.grid, tokens.num_extra)
      for tokens in stages
      if tokens.grid is not None and len(tokens.grid) == 2
    ]

  def normalised(self, x: Float[Array, '*rest width']) -> Float[Array, '*rest width']:
    """Returns the input of the head for the residual stream `x` after a layer."""
    norm = self.body.final_norm
    return x if norm is None else norm(x)


def sides(model: object) -> dict[str, Side]:
  """Returns the sides of a model by name; empty for model classes that declare none."""
  model = module_of(model)
  declared = model.sides if isinstance(model, InspectableModel) else {}
  return {
    name: Side(name, side.body, side.embedding, (*side.encodings, side.body.encoding))
    for name, side in declared.items()
    if isinstance(side.body, Encoder | Decoder)
  }


def class_logits(model: object) -> Callable[[Array], Array] | None:
  """Returns the function from normalised hidden vectors [batch, length, width] to class logits [batch, classes];
  None if the model has no such classes."""
  module = module_of(model)
  has_classes = isinstance(module, InspectableModel) and 'class logits' in module.spec.outputs
  return module.class_logits if has_classes else None


def records_attention(body: Encoder | Decoder) -> bool:
  """Returns whether the layers of a body can return attention probabilities."""
  stack = body.stack
  stacks = stack.stages if isinstance(stack, Stages) else [stack]
  return all(
    not isinstance(one, Stack) or any('record.probabilities' in b.reads for b in one.blocks)
    for one in stacks
  )
