"""Between text and padded id arrays, for tasks that generate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from t2x.data import Tokenizer
from t2x.decode import Generated

__all__ = ['answers', 'pad_prompts']


def pad_prompts(
  prompts: Sequence[Sequence[int]], pad_id: int, multiple: int = 32
) -> tuple[np.ndarray, np.ndarray]:
  """Ids [batch, length] padded on the right to a multiple (few shapes, few compilations), lengths."""
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  width = -(-max(int(lengths.max()), 1) // multiple) * multiple
  ids = np.full((len(prompts), width), pad_id, np.int32)
  for row, prompt in zip(ids, prompts, strict=True):
    row[: len(prompt)] = prompt
  return ids, lengths


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
