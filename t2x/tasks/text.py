"""Between text and id arrays, for several tasks."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.data import ConcatenateAndSplit, FullRows, Tokenizer
from t2x.decode import Generated
from t2x.errors import UserError
from t2x.layers import RowLayout, Tokens
from t2x.models import Output, TextModel
from t2x.ranges import Size
from t2x.tasks.base import TokenTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinedDocuments(TokenTask):
  """A task over rows of documents that are joined and cut.

  Attributes:
    length: tokens a row.
    separate_documents: whether documents of one row are hidden from each other. False: rows are one segment
      and always full, so that kernels which take no segments can be used.

  Raises:
    UserError: `pieces` without `separate_documents`.
  """

  length: Size
  separate_documents: bool = True

  def __post_init__(self):
    if self.pieces is not None and self.one_segment:
      name = type(self).__name__
      raise UserError(
        f'{name}.pieces leaves room in each row, and {name}.separate_documents = False needs full '
        'rows: leave one of them out'
      )

  @property
  def plan(self):
    """Rows without padding."""
    plan = ConcatenateAndSplit if self.separate_documents else FullRows
    return plan(self.planned(self.length))

  @property
  def one_segment(self):
    """As the plan states."""
    return self.plan.one_segment

  def row_tokens(self, batch: Mapping[str, jax.Array]) -> Tokens:
    """Metadata of the rows of a batch: packed documents, or plain rows."""
    if self.one_segment:
      return Tokens.row(self.length)
    return Tokens(batch['positions'], batch['segments'], layout=RowLayout.PACKED)


def encoded_spec(batch_size: int, length: int, *by_token: str) -> dict[str, jax.ShapeDtypeStruct]:
  """tokens, types, segments and what else there is of each token: int32 [batch, length]."""
  names = ('tokens', 'types', 'segments', *by_token)
  return {name: jax.ShapeDtypeStruct((batch_size, length), jnp.int32) for name in names}


def hidden_of(model: TextModel, batch: Mapping[str, jax.Array], key: jax.Array | None) -> Output:
  """A language model's hidden vectors of rows that hold one encoded example each; the types go to
  models that have some."""
  return model.hidden(
    batch['tokens'],
    tokens=Tokens.row(batch['tokens'].shape[1], segments=batch['segments']),
    types=batch['types'] if model.spec.num_types else None,
    key=key,
  )


def pad_prompts(
  prompts: Sequence[Sequence[int]], pad_id: int, multiple: int = 32, longest: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Ids [batch, length] padded on the right to a multiple (few shapes, few compilations), lengths;
  to no more than `longest`, which no prompt exceeds."""
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  width = -(-max(int(lengths.max()), 1) // multiple) * multiple
  width = min(width, longest or width)
  ids = np.full((len(prompts), width), pad_id, np.int32)
  for row, prompt in zip(ids, prompts, strict=True):
    row[: len(prompt)] = prompt
  return ids, lengths


def check_shapes(generated: Callable[[Any], Generated], model: nnx.Module) -> None:
  """Raises what `generated(model)` raises when it is traced with a model of these shapes."""
  jax.eval_shape(lambda m: jax.tree.leaves(generated(m)), model)


def answers(generated: Generated, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
  """For each prompt the returned sequences as text, tokens, log-probabilities and score."""
  tokens, lengths = np.asarray(generated.tokens), np.asarray(generated.lengths)
  log_probs, scores = np.asarray(generated.log_probs), np.asarray(generated.scores)

  def one(b, r):
    ids = tokens[b, r, : lengths[b, r]].tolist()
    text = tokenizer.decode([i for i in ids if i != tokenizer.eos_id])
    return {
      'text': text,
      'tokens': ids,
      'log_probs': [float(x) for x in log_probs[b, r, : lengths[b, r]]],
      'score': float(scores[b, r]),
    }

  return [[one(b, r) for r in range(tokens.shape[1])] for b in range(tokens.shape[0])]
