"""Recorded intermediate arrays: hidden vectors and attention probabilities by layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.layers import (
  Blockwise,
  Causal,
  GatedConvolution,
  LightweightConvolution,
  MultiHeadAttention,
  Tokens,
  Window,
)
from t2x.models import Decoder, Encoder


@pytest.mark.parametrize(
  ('kernel', 'num_groups'),
  [
    (None, None),
    (Blockwise(4, 4), 1),
    pytest.param(None, 1, marks=pytest.mark.nightly),
    pytest.param(Blockwise(4, 4), None, marks=pytest.mark.nightly),
  ],
)
def test_probabilities_of_each_layer_follow_its_pattern_and_sum_to_one(make, kernel, num_groups):
  blocks = [make.block(kernel), make.block(kernel, pattern=Window(2))]
  stack = make.stack(blocks, num_layers=4, num_groups=num_groups)
  model = make.built(make.language_model(layers=stack))
  segments = jnp.asarray([[1] * 5 + [0] * 2, [1] * 7])
  tokens = Tokens.row(7, segments=segments)
  out = jax.jit(
    lambda ids: model(ids, tokens=tokens, record=frozenset({'probabilities', 'hidden'}))
  )(make.ids((2, 7)))
  assert sorted(out.recorded) == [
    f'blocks.{i}.{name}' for i in (0, 1) for name in ('hidden', 'mixer.probabilities')
  ]
  for number, pattern in enumerate((Causal(), Causal() & Window(2))):
    found = np.asarray(out.recorded[f'blocks.{number}.mixer.probabilities'])
    assert found.shape == (2, 2, 4, 7, 7)
    present = np.asarray(segments)[:, None, :] * np.asarray(segments)[:, :, None] > 0
    seen = (pattern.mask(7, 7)[None] & present)[None, :, None]
    assert (found[~np.broadcast_to(seen, found.shape)] == 0).all()
    sums = found.sum(-1)
    np.testing.assert_allclose(sums, np.broadcast_to(seen.any(-1), sums.shape), atol=1e-5)
  last = model.body.final_norm(out.recorded['blocks.1.hidden'][1])
  np.testing.assert_allclose(model.logits(last), out.x, atol=1e-4)


def test_cross_attention_is_recorded_beside_self_attention(make):
  cross = functools.partial(MultiHeadAttention, num_heads=4)
  model = make.built(
    make.encoder_decoder(
      functools.partial(Encoder, stack=make.stack()),
      functools.partial(Decoder, stack=make.stack([make.block(cross=cross)])),
    )
  )
  out = model(make.ids((2, 5)), make.ids((2, 3)), record=frozenset({'probabilities'}))
  shapes = {name: value.shape for name, value in out.recorded.items()}
  assert shapes == {
    'encoder.blocks.0.mixer.probabilities': (2, 2, 4, 5, 5),
    'decoder.blocks.0.mixer.probabilities': (2, 2, 4, 3, 3),
    'decoder.blocks.0.cross.probabilities': (2, 2, 4, 3, 5),
  }


def test_what_no_part_records_is_refused(make):
  model = make.built(make.language_model())
  with pytest.raises(UserError, match='no part of this stack records scores'):
    model(make.ids((1, 4)), record=frozenset({'scores'}))
  convolution = functools.partial(LightweightConvolution, num_heads=2, kernel_size=3)
  block = functools.partial(make.block(), mixer=convolution)
  model = make.built(make.language_model(layers=make.stack([block])))
  with pytest.raises(UserError, match='no part of this stack records probabilities'):
    model(make.ids((1, 4)), record=frozenset({'probabilities'}))


def test_only_one_side_of_an_encoder_decoder_needs_to_record(make):
  convolution = make.stack([functools.partial(make.block(), mixer=GatedConvolution)])
  cross = functools.partial(MultiHeadAttention, num_heads=4)
  sides = {'encoder': convolution, 'decoder': make.stack([make.block(cross=cross)])}
  model = make.built(
    make.encoder_decoder(
      functools.partial(Encoder, stack=sides['encoder']),
      functools.partial(Decoder, stack=sides['decoder']),
    )
  )
  out = model(make.ids((2, 5)), make.ids((2, 3)), record=frozenset({'hidden', 'probabilities'}))
  assert set(out.recorded) == {
    'encoder.blocks.0.hidden',
    *(
      f'decoder.blocks.0.{name}'
      for name in ('hidden', 'mixer.probabilities', 'cross.probabilities')
    ),
  }
  with pytest.raises(UserError, match='neither the encoder nor the decoder records scores'):
    model(make.ids((1, 4)), make.ids((1, 4)), record=frozenset({'scores', 'hidden'}))
