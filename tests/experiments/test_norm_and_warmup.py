"""Measured factors of Admin's shortcuts."""

import functools
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import MLP, Admin, LayerNorm, MultiHeadAttention, TokenEmbedding, Tokens, zeros
from t2x.layers.initializers import normal
from t2x.models import Block, Decoder, LanguageModel, Stack


@pytest.fixture
def admin(monkeypatch):
  folder = Path(__file__).parents[2] / 'experiments' / 'norm_and_warmup'
  monkeypatch.syspath_prepend(str(folder))
  import admin

  yield admin
  sys.modules.pop('admin')


def measured(admin, out_init):
  """The factors for three layers whose embeddings are normalised."""
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2, out_init=out_init),
    feed_forward=functools.partial(MLP, hidden_dim=8, out_init=out_init),
    wiring=Admin,
  )
  body = functools.partial(
    Decoder,
    stack=functools.partial(Stack, num_layers=3, blocks=[block]),
    input_norm=LayerNorm,
  )
  embedding = functools.partial(TokenEmbedding, vocab_size=9)
  model = LanguageModel(d_model=8, embedding=embedding, body=body, rngs=nnx.Rngs(0))
  return admin.measured_omega(model, jnp.asarray([[1, 2, 3, 4], [4, 4, 8, 1]]), Tokens.row(4))


def test_branches_that_return_zero_do_not_change_the_factors(admin):
  np.testing.assert_allclose(measured(admin, zeros()), np.ones(6), atol=1e-3)


def test_factors_grow_with_the_variance_of_the_branches(admin):
  small, large = (np.asarray(measured(admin, normal(stddev))) for stddev in (0.1, 0.5))
  assert (np.diff(small) > 0).all() and (large[1:] > small[1:]).all()
