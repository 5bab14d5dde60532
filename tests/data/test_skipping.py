"""Batches that are left out."""

import numpy as np

from t2x.data import Skipping

BATCHES = [{'number': np.array(step)} for step in range(20)]


def numbers(batches, count):
  return [int(batches[step]['number']) for step in range(count)]


def test_without_skips_nothing_changes():
  assert numbers(Skipping(BATCHES), 5) == [0, 1, 2, 3, 4]


def test_from_its_step_on_a_skip_leaves_batches_out():
  assert numbers(Skipping(BATCHES, [(2, 3)]), 4) == [0, 1, 5, 6]


def test_skips_add_up():
  batches = Skipping(BATCHES, [(2, 3), (3, 1)])
  assert [batches.source_step(step) for step in range(5)] == [0, 1, 5, 7, 8]


def test_a_later_skip_before_an_earlier_skip_restores_no_batches():
  assert numbers(Skipping(BATCHES, [(4, 3), (3, 3)]), 5) == [0, 1, 2, 9, 10]
