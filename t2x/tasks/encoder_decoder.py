"""Prediction of a target from a source with an encoder-decoder: teacher forcing in training, and generation (Vaswani et
al. 2017, https://arxiv.org/abs/1706.03762)."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2x.data import Tokenizer
from t2x.decode import Generated, generate
from t2x.decode.sampling import SampleSeed, prompt_keys
from t2x.layers import Tokens
from t2x.models import DecodingModel, Output, TextModel
from t2x.parallel.placed import Placed
from t2x.tasks.causal_lm import shift_right


def sides_spec(
  batch_size: int, lengths: Mapping[str, int], columns: Sequence[str] = ('', '_segments')
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the columns of both sides: int32 [batch, length].

  Args:
    batch_size: rows per batch.
    lengths: tokens of 'source' and 'target'.
    columns: ends of the names of the columns of each side.
  """
  return {
    side + column: jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
    for side, length in lengths.items()
    for column in columns
  }


def padded_side(batch: Mapping[str, jax.Array], name: str) -> Tokens:
  """Returns the metadata of the tokens of 'source' or 'target': of one text and its padding."""
  segments = batch[f'{name}_segments']
  return Tokens.row(segments.shape[1], segments=segments, right_padded=True)


def teacher_forced(
  model: TextModel,
  batch: Mapping[str, jax.Array],
  source_tokens: Tokens | None,
  target_tokens: Tokens,
  start_id: int,
  key: jax.Array | None,
  **settings: Any,
) -> Output:
  """Returns the output of a model that reads the source, and before each target token those before it.

  Args:
    model: the encoder-decoder.
    batch: 'source', 'target' and 'target_segments'.
    source_tokens: metadata of the source; None: unpadded rows.
    target_tokens: metadata of the target.
    start_id: the id before the first target token.
    key: random keys of the rows; None in evaluation.
    **settings: further arguments of `hidden`, such as `record`.
  """
  before = shift_right(batch['target'], batch['target_segments'], start_id)
  return model.hidden(
    batch['source'],
    before,
    source_tokens=source_tokens,
    target_tokens=target_tokens,
    key=key,
    **settings,
  )


def generated_targets(
  tokenizer: Tokenizer,
  model: DecodingModel | Placed,
  source: np.ndarray,
  tokens: Tokens | None,
  seed: SampleSeed,
  *,
  first: Sequence[Sequence[int]] | None = None,
  **settings: Any,
) -> Generated:
  """Generates the target of each source.

  Args:
    tokenizer: the fitted tokenizer.
    model: the model with its parameters.
    source: the sources, [batch, ...].
    tokens: metadata of the sources; None: unpadded rows.
    seed: random seed of sampling.
    first: ids after the start token, equally many for each source; None: the ids of the tokenizer.
    **settings: further arguments of `t2x.decode.generate`, such as `strategy` and `max_new_tokens`.
  """
  ids = [tokenizer.before] * len(source) if first is None else first
  start = np.array([[tokenizer.start_id, *own] for own in ids], np.int32)
  return generate(
    model,
    start,
    np.full(len(source), start.shape[1], np.int32),
    eos_id=tokenizer.eos_id,
    pad_id=tokenizer.pad_id,
    key=prompt_keys(seed, len(source)),
    source=source,
    source_tokens=tokens,
    **settings,
  )
