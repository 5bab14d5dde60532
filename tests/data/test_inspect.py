"""What `t2x data inspect` shows."""

import io

import numpy as np
from in_order import InOrder
from rich.console import Console
from tiny_source import Texts

from t2x.data import (
  Batches,
  Bytes,
  ConcatenateAndSplit,
  MaskTokens,
  PackPairs,
  PrepareImage,
  inspect_batches,
  token_rows,
)

BYTES = Bytes().train([])


def shown(batches, tokenizer):
  console = Console(file=io.StringIO(), soft_wrap=True, highlight=False)
  speed = inspect_batches(batches, tokenizer, num_batches=1, seconds=0.0, console=console)
  return console.file.getvalue(), speed


def test_masks_and_segments_are_visible(tmp_path):
  rows = token_rows(Texts(), 'train', BYTES, ConcatenateAndSplit(64), tmp_path)
  mask = MaskTokens(tokenizer=BYTES, max_predictions=10, mask_rate=1.0, random_rate=0.0)
  batches = Batches(rows, mask, batch_size=4, seed=0, order=InOrder(len(rows)))
  text, speed = shown(batches, BYTES)
  assert '[1]' in text and '[2]' in text
  assert '{<mask> -> ' in text
  assert 'tokens int32[4, 64]' in text
  assert speed['tokens_per_second'] > speed['examples_per_second'] > 0


def test_both_sides_of_pairs_and_their_padding_are_visible(tmp_path):
  rows = token_rows(Texts(), 'train', BYTES, PackPairs(64, 64), tmp_path)
  text, _ = shown(Batches(rows, batch_size=4, seed=0, order=InOrder(len(rows))), BYTES)
  assert 'source: [1]number ' in text and 'target: [1]nme ' in text
  assert 'padding]' in text


def test_images_are_drawn():
  rows = [{'image': np.eye(8, dtype=np.uint8) * 255, 'label': 3}] * 4
  text, speed = shown(Batches(rows, PrepareImage(), batch_size=2, seed=0), None)
  assert 'label 3' in text and '@@' in text
  assert 'tokens_per_second' not in speed
