"""Load of the experts by groups of rows, against the load that the model records for the inputs of all rows."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_lm import ATTENTION, causal_lm, full_rows, lm

from t2x.base.errors import UserError
from t2x.cli.look import _with_rows
from t2x.data import Bytes
from t2x.layers import MLP, MixtureOfExperts, Tokens
from t2x.look import Look, load_of_rows, look_at_text
from t2x.models import Block
from t2x.tasks import Mixture

part = functools.partial
EXPERTS, LENGTH, ROWS = 4, 10, 5
TOKENIZER = Bytes().train([])


@pytest.fixture(scope='module')
def model():
  """Four layers, of which the second and the fourth have experts."""
  dense = part(MLP, hidden_dim=8)
  experts = part(MixtureOfExperts, num_experts=EXPERTS, expert=dense)
  blocks = [part(Block, mixer=ATTENTION, feed_forward=layer) for layer in (dense, experts)]
  return lm(width=8, num_layers=4, blocks=blocks)(rngs=nnx.Rngs(0))


@pytest.fixture(scope='module')
def task():
  return causal_lm(LENGTH).bound(TOKENIZER)


@pytest.fixture(scope='module')
def rows():
  """Rows with padding at the end of the first."""
  batch = {name: np.array(array) for name, array in full_rows(ROWS, LENGTH).items()}
  for array in batch.values():
    array[0, 6:] = 0
  return [{name: array[i] for name, array in batch.items()} for i in range(ROWS)]


@pytest.fixture(scope='module')
def expected(model, rows):
  """Number of choices [layers, rows, experts] for the inputs of the rows, which begin with the begin-of-text token."""
  tokens, segments = (np.stack([row[name] for row in rows]) for name in ('tokens', 'segments'))
  inputs = np.concatenate([np.full((ROWS, 1), TOKENIZER.bos_id), tokens[:, :-1]], axis=1) * segments
  given = Tokens.row(LENGTH, segments=jnp.asarray(segments))
  record = frozenset({'load'})
  out = jax.jit(lambda m: m.hidden(jnp.asarray(inputs), tokens=given, record=record))(model)
  load = np.asarray(out.recorded['blocks.1.feed_forward.load'])
  # Two experts for each token, without padding.
  assert load.sum(axis=-1).tolist() == [[12, 20, 20, 20, 20]] * 2
  return load


def test_the_load_of_a_task_is_that_of_each_row(model, task, rows, expected):
  """Of three of the rows, in batches of two."""
  loads = load_of_rows(model, task, {'': rows}, 3, batch_size=2)
  assert [load.name for load in loads] == ['layer 2', 'layer 4']
  for load, layer in zip(loads, expected, strict=True):
    assert load.groups == ('row 1', 'row 2', 'row 4')
    wanted = layer[[0, 1, 3]]
    np.testing.assert_allclose(load.shares, wanted / wanted.sum(axis=1, keepdims=True), rtol=1e-6)


def test_the_load_of_a_mixture_is_that_of_all_rows_of_each_task(model, task, rows, expected):
  mixture = Mixture(tasks={'en': task, 'de': task})
  loads = load_of_rows(model, mixture, {'en': rows[:2], 'de': rows[2:]}, 9, batch_size=4)
  for load, layer in zip(loads, expected, strict=True):
    assert load.groups == ('en', 'de')
    wanted = np.stack([layer[:2].sum(axis=0), layer[2:].sum(axis=0)]) / [[32], [60]]
    np.testing.assert_allclose(load.shares, wanted, rtol=1e-6)


def test_the_input_and_the_rows_of_the_run_are_drawn_together(model, task, rows):
  look = look_at_text(model, TOKENIZER, 'an input')
  assert [load.groups for load in look.loads] == [('input',)] * 2
  np.testing.assert_allclose([load.shares.sum() for load in look.loads], 1, rtol=1e-6)
  inference = types.SimpleNamespace(rows=lambda split, part: rows, batch_size=4)
  loaded = types.SimpleNamespace(model=model, task=task, inference=inference)
  drawn = _with_rows(look, loaded, 1).loads
  assert [load.groups for load in drawn] == [('input', 'row 1')] * 2
  np.testing.assert_array_equal(drawn[0].shares[:1], look.loads[0].shares)
  with pytest.raises(UserError, match='--rows has no effect'):
    _with_rows(Look(), loaded, 1)
