"""Facts about a model, as data."""

import dataclasses
from typing import Literal

from t2x.layers import Pattern

Inputs = Literal['a text', 'a source and a target', 'images']
# Logits over the vocabulary for each token, over classes for each row or for each token; or vectors.
OutputKind = Literal['token logits', 'class logits', 'classes per token', 'vectors']


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
  """Facts about a model, known from its shapes.

  Attributes:
    inputs: what the model is called with.
    outputs: the kinds of outputs that its head computes.
    patterns: attention patterns of the layers whose output the head reads.
    max_length: the most tokens in a row, of the target where there is a source; None: any number.
    max_source_length: the most tokens in a source; None: any number.
    vocab_size: size of the vocabulary of a text or a target; None for images.
    num_classes: number of class logits; None without.
    num_types: number of token types (BERT's sentences A and B).
  """

  inputs: Inputs
  outputs: frozenset[OutputKind]
  patterns: tuple[Pattern, ...]
  max_length: int | None = None
  max_source_length: int | None = None
  vocab_size: int | None = None
  num_classes: int | None = None
  num_types: int = 0

  def is_causal(self, length: int) -> bool:
    """Whether no token of a row of `length` tokens sees a later token."""
    return all(pattern.is_causal(length) for pattern in self.patterns)
