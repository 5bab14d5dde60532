"""Inputs of a causal language model, and splits whose bytes its targets do not cover."""

import jax.numpy as jnp
import numpy as np
import pytest

from t2x.data import Bytes, TextFiles
from t2x.data.tokenizers.characters import ByteTokenizer
from t2x.tasks import CausalLM
from t2x.tasks.causal_lm import shift_right


def test_each_segment_starts_from_bos():
  tokens = jnp.array([[5, 6, 1, 7, 8, 0]])
  segments = jnp.array([[1, 1, 1, 2, 2, 0]])
  np.testing.assert_array_equal(shift_right(tokens, segments, 3), [[3, 5, 6, 3, 7, 3]])


class Lowered(ByteTokenizer):
  """Bytes of lower-case text, as of uncased vocabularies."""

  def encode(self, text):
    return super().encode(text.lower())


@pytest.mark.parametrize(('tokenizer', 'is_counted'), [(ByteTokenizer(), True), (Lowered(), False)])
def test_bits_per_byte_is_left_out_if_the_tokenizer_changes_texts(tmp_path, tokenizer, is_counted):
  (tmp_path / 'text.txt').write_text('one line\n\nAnother')
  source = TextFiles(train=str(tmp_path / 'text.txt'))
  task = CausalLM(source=source, tokenizer=Bytes(), length=8).bound(tokenizer)
  info = {'bytes': 4, 'tokens': 1, 'split': task.source.splits()[0]}
  metrics = task.summarise({'loss': (1.0, 1.0)}, info)
  assert ('bits_per_byte' in metrics) == is_counted
