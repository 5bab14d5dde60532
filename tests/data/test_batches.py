"""The batch at a step is a function of the seed and the step, and of nothing else."""

import multiprocessing
import re
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_order import InOrder
from tiny_source import Dying

from t2x.base.errors import UserError
from t2x.data import Batches, Bytes, MaskTokens, evaluation_batches, prefetch
from t2x.data.batches import shuffled

BYTES = Bytes().train([])


def text_rows(count=37, length=24):
  rng = np.random.default_rng(1)
  return [
    {
      'tokens': rng.integers(5, 261, length).astype(np.int32),
      'segments': np.ones(length, np.int32),
      'number': np.int32(i),
    }
    for i in range(count)
  ]


MASKS = MaskTokens(tokenizer=BYTES, max_predictions=4)


def masked(count=37, **kwargs):
  return Batches(text_rows(count), MASKS, **{'batch_size': 8, 'seed': 3} | kwargs)


def assert_equal(one, other):
  assert one.keys() == other.keys()
  for name in one:
    np.testing.assert_array_equal(one[name], other[name])


def test_the_rows_of_a_batch_are_those_of_all_processes():
  shares = [masked(process_index=i, process_count=4).indices(7) for i in range(4)]
  whole = masked(process_index=1, process_count=4).global_indices(7)
  for got, parts in zip(whole, zip(*shares, strict=True), strict=True):
    np.testing.assert_array_equal(got, np.concatenate(parts))


@given(st.integers(1, 300), st.integers(-5, 2**70), st.integers(0, 2**40))
def test_each_epoch_is_a_permutation(size, seed, epoch):
  epochs, index = shuffled(epoch * size + np.arange(size), size, seed)
  assert (epochs == epoch).all()
  assert sorted(index.tolist()) == list(range(size))


def test_all_places_are_equally_likely():
  size = 10
  seen = np.stack([shuffled(np.arange(size), size, seed)[1] for seed in range(1000)])
  for place in range(size):
    counts = np.bincount(seen[:, place], minlength=size)
    assert ((counts - 100) ** 2 / 100).sum() < 33  # chi-square with 9 degrees, p = 1e-4
  follows = np.mean(seen[:, 1:] == seen[:, :-1] + 1)
  assert abs(follows - 1 / size) < 0.015


def test_epochs_and_seeds_have_orders_of_their_own():
  orders = {tuple(shuffled(np.arange(50) + 50 * e, 50, s)[1]) for e in range(5) for s in range(5)}
  assert len(orders) == 25


def test_an_epoch_shows_every_row_once():
  batches = masked(count=40)
  seen = [n for step in range(5, 10) for n in batches[step]['number'].tolist()]
  assert sorted(seen) == list(range(40))
  assert batches.num_batches == 5


def test_fewer_rows_than_a_batch_are_wrapped_over_epochs():
  batches = masked(count=3)
  seen = np.concatenate([batches[step]['number'] for step in range(3)])
  assert np.bincount(seen).tolist() == [8, 8, 8]


@pytest.mark.parametrize('num_workers', [0, 1, 4])
def test_workers_and_restarts_do_not_change_batches(num_workers):
  batches = masked()
  for start, stop in ((0, 9), (6, 9)):
    got = list(prefetch(batches, start, stop, num_workers))
    assert len(got) == stop - start
    for step, batch in enumerate(got, start):
      assert_equal(batch, batches[step])


@pytest.mark.parametrize('num_workers', [0, 2])
def test_the_transfer_of_a_batch_runs_in_the_main_process_before_its_use(num_workers):
  threads = []

  def then(batch):
    threads.append(threading.current_thread().name)
    return batch['number'].sum()

  batches = masked()
  got = list(prefetch(batches, 2, 6, num_workers, then=then))
  assert got == [batches[step]['number'].sum() for step in range(2, 6)]
  assert threads == ['t2x-prefetch'] * 4


@pytest.mark.parametrize('count', [1, 2, 4])
def test_the_parts_of_processes_make_the_global_batch(count):
  whole = masked()
  parts = [masked(process_index=i, process_count=count) for i in range(count)]
  for step in (0, 4, 5):
    joined = [part[step] for part in parts]
    batch = {name: np.concatenate([part[name] for part in joined]) for name in joined[0]}
    assert_equal(batch, whole[step])
  assert {part.fingerprint for part in parts} == {whole.fingerprint}


def test_an_indivisible_batch_is_an_error():
  with pytest.raises(UserError, match='8 rows cannot be split evenly among 3'):
    masked(process_count=3)


def test_an_empty_split_is_an_error():
  with pytest.raises(UserError, match='no rows'):
    Batches([], batch_size=4, seed=0)


def test_rows_of_different_shapes_are_an_error():
  rows = [{'x': np.zeros(3)}, {'x': np.zeros(4)}]
  message = re.escape("differ in the shape of 'x': 1 of shape (3,), 1 of shape (4,)")
  with pytest.raises(UserError, match=message):
    Batches(rows, batch_size=2, seed=0, order=InOrder(len(rows)))[0]


def test_unshuffled_batches_continue_in_order():
  batches = Batches(text_rows(5), batch_size=4, seed=0, order=InOrder(5))
  assert batches[1]['number'].tolist() == [4, 0, 1, 2]


def test_the_fingerprint_follows_what_batches_depend_on():
  changed = [masked(), masked(seed=4), masked(batch_size=4), masked(count=38)]
  changed.append(Batches(text_rows(), batch_size=8, seed=3))
  assert len({batches.fingerprint for batches in changed}) == 5
  assert masked().fingerprint == masked().fingerprint


@settings(max_examples=30)
@given(st.integers(0, 20), st.sampled_from([4, 8]), st.sampled_from([1, 2, 4]))
def test_evaluation_reads_every_row_once_and_pads_with_zeros(count, batch_size, processes):
  rows = text_rows(count)
  parts = [
    evaluation_batches(rows, None, batch_size, process_index=i, process_count=processes)
    for i in range(processes)
  ]
  assert {len(part) for part in parts} == {-(-count // batch_size)}
  numbers, segments = [], []
  for step in range(len(parts[0])):
    for part in parts:
      assert len(part[step]['number']) == batch_size // processes
      numbers += part[step]['number'].tolist()
      segments += part[step]['segments'].any(axis=1).tolist()
  assert numbers[:count] == list(range(count))
  assert segments == [True] * count + [False] * (len(segments) - count)


def test_evaluation_draws_the_same_each_time():
  first, again = (list(evaluation_batches(text_rows(), MASKS, 8)) for _ in range(2))
  for one, other in zip(first, again, strict=True):
    assert_equal(one, other)


@pytest.mark.parametrize('num_workers', [0, 2])
def test_an_error_of_a_worker_is_raised_in_the_main_process(num_workers):
  stream = prefetch(Dying(at=3, raises=True), 0, 10, num_workers)
  assert [next(stream)['step'] for _ in range(3)] == [0, 1, 2]
  with pytest.raises((RuntimeError, ValueError), match='step 3 is no good'):
    next(stream)


def test_a_dead_worker_is_an_error():
  stream = prefetch(Dying(at=3), 0, 10, num_workers=2)
  with pytest.raises(RuntimeError, match=r'died at step 3 \(exit code 9\)'):
    list(stream)


def test_a_user_error_in_a_worker_is_raised_as_a_user_error():
  batches = Batches([{'x': np.zeros(3)}, {'x': np.zeros(4)}], batch_size=2, seed=0)
  with pytest.raises(UserError, match="shape of 'x'"):
    next(prefetch(batches, 0, 4, num_workers=1))


@pytest.mark.parametrize('num_workers', [0, 2])
def test_closing_ends_threads_and_processes(num_workers):
  stream = prefetch(masked(), 0, 10**9, num_workers)
  next(stream)
  stream.close()
  assert multiprocessing.active_children() == []
  assert [thread.name for thread in threading.enumerate() if thread.name == 't2x-prefetch'] == []
