"""The config of ConvS2S generates with the probabilities of its forward pass. tests/parity compares it with fairseq."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from flax import nnx

from t2x.decode import Beam, Greedy, generate
from t2x.experiments import read_config
from t2x.layers import Tokens

VOCAB, WIDTH, PAD, EOS, ROOM = 11, 8, 0, 1, 5
SOURCE = np.random.default_rng(3).integers(2, VOCAB, (3, 7))
LENGTHS = np.asarray([[7], [4], [5]])
SOURCE_TOKENS = Tokens.row(7, segments=jnp.asarray(np.arange(7) < LENGTHS, jnp.int32))


@pytest.fixture(scope='module')
def model():
  sizes = {'d_model': WIDTH, 'TokenEmbedding.vocab_size': VOCAB, 'LearnedPositions.max_length': 9}
  settings = [f'{name}={value}' for name, value in sizes.items()]
  experiment = read_config(['configs/runs/dates_convolutional.gin'], settings).build()
  return moved(experiment.complete_model()(rngs=nnx.Rngs(0)), scale=0.2)


@pytest.fixture(scope='module')
def logits(model):
  forward = jax.jit(lambda ids: model(jnp.asarray(SOURCE), ids, source_tokens=SOURCE_TOKENS).x)
  return lambda ids: forward(jnp.asarray(ids))


@pytest.mark.parametrize(
  'strategy', [pytest.param(Greedy(), marks=pytest.mark.nightly), Beam(3)], ids=str
)
def test_generated_tokens_have_the_probabilities_of_the_forward_pass(model, logits, strategy):
  settings = {'max_new_tokens': ROOM, 'eos_id': EOS, 'pad_id': PAD, 'strategy': strategy}
  inputs = {'source': jnp.asarray(SOURCE), 'source_tokens': SOURCE_TOKENS}
  prompts = np.full((3, 1), 2)
  with jax.numpy_rank_promotion('allow'):  # Only layers and models broadcast explicitly.
    found = generate(model, prompts, np.ones(3, int), **settings, **inputs)
  ids = np.concatenate([prompts, found.tokens[:, 0]], axis=1)
  steps = jax.nn.log_softmax(logits(ids)[:, :-1], axis=-1)
  expected = jnp.take_along_axis(steps, jnp.asarray(ids)[:, 1:, None], axis=2)[..., 0]
  own = np.arange(ROOM)[None] < np.asarray(found.lengths)
  np.testing.assert_allclose(found.log_probs[:, 0], np.where(own, expected, 0), atol=2e-5)


def test_decoding_token_by_token_equals_the_forward_pass(model, logits):
  ids = np.random.default_rng(1).integers(2, VOCAB, (3, ROOM + 1))
  full = logits(ids)
  decode = jax.jit(lambda model, *inputs: model.decode(*inputs))
  cache = model.init_cache(3, ROOM + 1, jnp.asarray(SOURCE), SOURCE_TOKENS)
  for i in range(ROOM + 1):
    tokens = Tokens(jnp.full((3, 1), i))
    step, cache = decode(model, jnp.asarray(ids[:, i : i + 1]), tokens, cache)
    np.testing.assert_allclose(step[:, 0], full[:, i], atol=2e-5)
