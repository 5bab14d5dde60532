"""A description of a model's inputs, outputs and sizes."""

import dataclasses
from collections.abc import Mapping

from t2x.base.errors import UserError
from t2x.layers import Input, InputKind, Pattern

__all__ = ['Inputs', 'ModelSpec']

# The kinds of arrays by name.
Inputs = Mapping[str, InputKind]

# What older tasks and models wrote for their inputs.
_PHRASES = {
  'a text': ('tokens',),
  'a source and a target': ('source', 'target'),
  'images': ('image',),
}


def check_named(inputs: object, where: str, value: str) -> None:
  """Raises UserError if inputs are not named, as in t2x before its named inputs.

  Args:
    inputs: the inputs.
    where: what has them.
    value: the value of an input, for the message; `{kind}` is replaced by its kind.
  """
  if not isinstance(inputs, Mapping):
    names = _PHRASES.get(str(inputs), ('tokens',))
    items = (
      f"'{name}': {value.format(kind='image' if name == 'image' else 'ids')}" for name in names
    )
    raise UserError(
      f'{where} = {inputs!r}: inputs are arrays by name; write {{{", ".join(items)}}}'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
  """Inputs, outputs and sizes of a model.

  Attributes:
    inputs: the arrays that the model is called with, in order. Their names are those of the batch: 'tokens' of a
      language model, 'source' and 'target' of an encoder-decoder, 'image' of an image model.
    outputs: names of the outputs that the head computes: 'token logits' over the vocabulary, 'further tokens' (logits
      of later tokens), 'class logits' per row,
      'classes per token', 'vectors', 'boxes' with their classes, or names of a user's task and head.
    patterns: attention patterns of the layers whose output the head reads.
    num_classes: number of class logits; None without a classifier.
    num_types: number of token types (BERT's sentences A and B).

  Raises:
    UserError: the inputs are not named.
  """

  # A mapping has no hash.
  inputs: Mapping[str, Input] = dataclasses.field(hash=False)
  outputs: frozenset[str]
  patterns: tuple[Pattern, ...]
  num_classes: int | None = None
  num_types: int = 0

  def __post_init__(self):
    check_named(self.inputs, 'ModelSpec.inputs', "Input('{kind}')")

  @property
  def kinds(self) -> Inputs:
    """The kind of each input."""
    return {name: item.kind for name, item in self.inputs.items()}

  @property
  def is_encoder_decoder(self) -> bool:
    """True if the model predicts a 'target' from a 'source'."""
    return tuple(self.inputs) == ('source', 'target')

  @property
  def first(self) -> Input:
    """The first input: the source of an encoder-decoder."""
    return next(iter(self.inputs.values()))

  @property
  def last(self) -> Input:
    """The last input: the target of an encoder-decoder."""
    return list(self.inputs.values())[-1]

  @property
  def max_length(self) -> int | None:
    """Maximum length of the last input in tokens; None: unlimited."""
    return self.last.max_length

  @property
  def vocab_size(self) -> int | None:
    """Vocabulary size of the last input of token ids; None without one."""
    ids = (item for item in reversed(list(self.inputs.values())) if item.kind == 'ids')
    return next((item.vocab_size for item in ids), None)

  @property
  def reads_prefix(self) -> bool:
    """True if an attention pattern reads the mark 'prefix'."""
    return any('marks.prefix' in pattern.reads for pattern in self.patterns)

  def is_causal(self, length: int) -> bool:
    """Returns whether no token in a row of `length` tokens attends to a later token."""
    return all(pattern.is_causal(length) for pattern in self.patterns)
