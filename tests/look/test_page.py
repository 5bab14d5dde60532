"""Data of a page."""

import base64
import zlib

import numpy as np

from t2x.look.page import page, page_data


def unpacked(maps):
  codes = np.frombuffer(zlib.decompress(base64.b64decode(maps['numbers'])), '<u2')
  low, high = (np.array(maps[name])[:, None, None] for name in ('low', 'high'))
  return low + codes.reshape(maps['shape']) / 65535 * (high - low)


def test_the_mean_over_heads_is_stored_before_the_heads(look):
  one = look.attention[0]
  (maps,) = page_data(look, {})['attention'][0]['layers']
  expected = np.concatenate([one.layers[0].mean(0)[None], one.layers[0]])
  np.testing.assert_allclose(unpacked(maps), expected, atol=1e-5)


def test_tokens_cannot_end_the_script(look):
  assert page(look, 'x', {}).count('</script>') == 2
