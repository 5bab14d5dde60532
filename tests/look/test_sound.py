"""When each token of a transcription listens."""

import numpy as np
from flax import nnx

from t2x.experiments import read_config
from t2x.look import look_at_pair
from t2x.look.pictures import write_pictures


def test_tokens_of_a_recording_are_named_by_their_time(tmp_path):
  overrides = ['d_model=8', 'num_layers=1', 'num_heads=2', 'MLP.hidden_dim=8', 'vocab_size=9']
  overrides += ['AudioStem.num_features=5', 'LearnedPositions.max_length=8']
  config = read_config(['configs/models/small_whisper.gin'], overrides)
  model = config.build().complete_model()(rngs=nnx.Rngs(0))
  frames = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
  look = look_at_pair(model, None, frames, [6, 3, 2], seconds=2.0, start=[1, 7])
  words, sound, text = look.attention
  assert (words.name, sound.name) == ('cross-attention', 'encoder self-attention')
  # Two frames are a token.
  assert words.keys == sound.keys == tuple(f'{i / 5:.2f} s' for i in range(10))
  assert words.queries == ('7', '6', '3', '2') and text.queries == ('1', '7', '6', '3')
  assert words.layers[0].shape == (2, 4, 10)
  np.testing.assert_allclose(words.layers[0].sum(-1), 1, atol=1e-5)
  names = {path.name for path in write_pictures(look, tmp_path)}
  assert 'alignment.png' in names and (tmp_path / 'alignment.png').stat().st_size > 2000
