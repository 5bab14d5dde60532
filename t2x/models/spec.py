"""A description of a model's inputs, outputs and sizes."""

import dataclasses
from typing import Literal

from t2x.layers import Pattern

__all__ = ['Inputs', 'ModelSpec', 'OutputKind']

Inputs = Literal['a text', 'a source and a target', 'images']
# Logits over the vocabulary per token, also of later tokens, over classes per row or per token; or vectors.
OutputKind = Literal[
  'token logits', 'further tokens', 'class logits', 'classes per token', 'vectors'
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
  """Inputs, outputs and sizes of a model.

  Attributes:
    inputs: kind of the model's inputs.
    outputs: kinds of outputs that the head computes.
    patterns: attention patterns of the layers whose output the head reads.
    max_length: maximum length of a row in tokens (of the target in an encoder-decoder); None: unlimited.
    max_source_length: maximum length of a source in tokens; None: unlimited.
    vocab_size: vocabulary size of the text or the target; None for images.
    num_classes: number of class logits; None without a classifier.
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

  @property
  def reads_prefix(self) -> bool:
    """True if an attention pattern reads the mark 'prefix'."""
    return any('marks.prefix' in pattern.reads for pattern in self.patterns)

  def is_causal(self, length: int) -> bool:
    """Returns whether no token in a row of `length` tokens attends to a later token."""
    return all(pattern.is_causal(length) for pattern in self.patterns)
