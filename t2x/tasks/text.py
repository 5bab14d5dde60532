"""Helpers of text tasks: rows of concatenated documents, encoded examples, prompts and answers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.data import ConcatenateAndSplit, DocumentPlan, Tokenizer
from t2x.decode import Generated
from t2x.errors import UserError
from t2x.layers import RowLayout, Tokens
from t2x.models import Output, TextModel
from t2x.ranges import Size
from t2x.tasks.base import TokenTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinedDocuments(TokenTask):
  """A task over documents that are packed into rows.

  Attributes:
    length: tokens per row.
    packing: the packing of documents, called with the tokens per row. `ConcatenateAndSplit` and
      `BestFitDocuments` hide the documents of a row from each other. Rows of `FullRows` and
      `RestartPositions` are one segment without padding, for which all attention kernels can be used.

  Raises:
    UserError: `pieces` is set and rows are one segment without padding.
  """

  length: Size
  packing: Callable[..., DocumentPlan] = ConcatenateAndSplit

  def __post_init__(self):
    if self.pieces is not None and self.one_segment:
      name = type(self).__name__
      raise UserError(
        f'{name}.pieces leaves padding in each row, but {name}.packing = @{type(self.plan).__name__} '
        'needs full rows: leave one of them out'
      )

  @property
  def plan(self):
    """The packing of documents into rows."""
    return self.packing(self.planned(self.length))

  @property
  def one_segment(self):
    """Whether every row is one segment without padding."""
    return self.plan.one_segment

  def row_tokens(self, batch: Mapping[str, jax.Array]) -> Tokens:
    """Returns the token metadata of a batch: packed documents or plain rows."""
    if self.one_segment:
      stored = 'positions' in self.plan.columns
      return Tokens.row(self.length, encoded=batch['positions'] if stored else None)
    return Tokens(batch['positions'], batch['segments'], layout=RowLayout.PACKED)


def encoded_spec(batch_size: int, length: int, *by_token: str) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of tokens, types, segments and other columns: int32 [batch, length]."""
  names = ('tokens', 'types', 'segments', *by_token)
  return {name: jax.ShapeDtypeStruct((batch_size, length), jnp.int32) for name in names}


def hidden_of(model: TextModel, batch: Mapping[str, jax.Array], key: jax.Array | None) -> Output:
  """Returns a language model's hidden vectors of rows with one encoded example each.

  The token types are passed only to models with type embeddings.
  """
  return model.hidden(
    batch['tokens'],
    tokens=Tokens.row(batch['tokens'].shape[1], segments=batch['segments'], right_padded=True),
    types=batch['types'] if model.spec.num_types else None,
    key=key,
  )


def pad_prompts(
  prompts: Sequence[Sequence[int]], pad_id: int, multiple: int = 32, longest: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Pads prompts on the right to a common length.

  Args:
    prompts: token ids.
    pad_id: the id of padding.
    multiple: rounds the length up to a multiple, to limit the number of compilations.
    longest: maximum length, at least that of the longest prompt.

  Returns:
    The ids, int32 [batch, length], and the lengths of the prompts, int32 [batch].
  """
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  width = -(-max(int(lengths.max()), 1) // multiple) * multiple
  width = min(width, longest or width)
  ids = np.full((len(prompts), width), pad_id, np.int32)
  for row, prompt in zip(ids, prompts, strict=True):
    row[: len(prompt)] = prompt
  return ids, lengths


def check_shapes(generate: Callable[[Any], Generated], model: nnx.Module) -> None:
  """Traces `generate(model)` with the shapes of a model, and raises its errors."""
  jax.eval_shape(lambda m: jax.tree.leaves(generate(m)), model)


def answers(generated: Generated, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
  """Returns the sequences of each prompt as dicts with text, tokens, log_probs and score."""
  tokens, lengths = np.asarray(generated.tokens), np.asarray(generated.lengths)
  log_probs, scores = np.asarray(generated.log_probs), np.asarray(generated.scores)

  def answer(b, r):
    ids = tokens[b, r, : lengths[b, r]].tolist()
    text = tokenizer.decode([i for i in ids if i != tokenizer.eos_id])
    return {
      'text': text,
      'tokens': ids,
      'log_probs': [float(x) for x in log_probs[b, r, : lengths[b, r]]],
      'score': float(scores[b, r]),
    }

  return [[answer(b, r) for r in range(tokens.shape[1])] for b in range(tokens.shape[0])]
