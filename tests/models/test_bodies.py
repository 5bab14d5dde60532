"""Encoder and decoder: the norm after the last layer."""

import functools

import jax
import pytest
from flax import nnx

from t2x.experiments import read_config
from t2x.layers import MLP, MultiHeadAttention, PostNorm, PreNorm, ReZero, RMSNorm
from t2x.models import Decoder, Encoder, ParallelBlock


@pytest.mark.parametrize('body', [Encoder, Decoder])
@pytest.mark.parametrize(('wiring', 'ends'), [(PreNorm, False), (PostNorm, True), (ReZero, False)])
def test_the_default_final_norm_is_left_out_after_a_norm(make, body, wiring, ends):
  stack = make.stack([make.block(wiring=wiring)])
  build = functools.partial(body, make.width, stack=stack)
  assert (make.built(build).final_norm is None) == ends
  explicit = make.built(functools.partial(build, final_norm=RMSNorm))
  assert isinstance(explicit.final_norm, RMSNorm)
  assert make.built(functools.partial(build, final_norm=None)).final_norm is None


def test_the_last_block_decides(make):
  blocks = [make.block(wiring=PostNorm), make.block()]
  assert make.built(functools.partial(Encoder, make.width, stack=make.stack(blocks))).final_norm
  blocks.reverse()
  last = make.built(functools.partial(Encoder, make.width, stack=make.stack(blocks)))
  assert last.final_norm is None
  parallel = functools.partial(
    ParallelBlock,
    mixer=functools.partial(MultiHeadAttention, num_heads=4),
    feed_forward=functools.partial(MLP, hidden_dim=24),
  )
  blocks = [make.block(wiring=PostNorm), parallel]
  assert make.built(functools.partial(Encoder, make.width, stack=make.stack(blocks))).final_norm


@pytest.mark.parametrize(('wiring', 'epsilon'), [('PreNorm', 0.5), ('PostNorm', None)])
def test_bindings_of_the_norm_reach_the_default(tmp_path, wiring, epsilon):
  file = tmp_path / 'x.gin'
  file.write_text(
    'Experiment.model = @LanguageModel\nLanguageModel.d_model = 8\nTokenEmbedding.vocab_size = 9\n'
    'Stack.num_layers = 1\nMultiHeadAttention.num_heads = 2\nMLP.hidden_dim = 8\n'
    f'Block.wiring = @{wiring}\nLayerNorm.epsilon = 0.5\n'
  )
  builder = read_config([file]).build().model
  norm = jax.eval_shape(lambda: builder(rngs=nnx.Rngs(0))).body.final_norm
  assert (norm and norm.epsilon) == epsilon
