"""The bodies of a model: those that it declares."""

import functools

import pytest
from flax import nnx

from t2x.layers import MLP, MultiHeadAttention
from t2x.look.anatomy import class_logits, sides
from t2x.models import Block, Decoder, InspectableModel, ModelSpec, Stack
from t2x.models.interfaces import ModelSide


class Mine(nnx.Module):
  """A model of a user, of no class of t2x."""

  def __init__(self, body, outputs):
    self.body, self.outputs = body, outputs

  @property
  def spec(self):
    return ModelSpec(inputs={}, outputs=frozenset(self.outputs), patterns=())

  @property
  def sides(self):
    return {'encoder': ModelSide(self.body, embedding='embedding')}

  def class_logits(self, x):
    return x


class Closed(nnx.Module):
  """A model that declares nothing."""


@pytest.fixture
def body():
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2),
    feed_forward=functools.partial(MLP, hidden_dim=16),
  )
  stack = functools.partial(Stack, num_layers=1, blocks=[block])
  return Decoder(8, stack=stack, rngs=nnx.Rngs(0))


def test_the_sides_of_a_model_are_those_that_it_declares(body):
  mine = Mine(body, ['class logits'])
  assert isinstance(mine, InspectableModel)
  (side,) = sides(mine).values()
  assert (side.name, side.body, side.embedding) == ('encoder', body, 'embedding')
  assert side.encodings == (body.encoding,)
  assert class_logits(mine)('x') == 'x'


def test_a_model_without_classes_has_no_class_logits(body):
  assert class_logits(Mine(body, ['token logits'])) is None


def test_a_model_that_declares_nothing_has_no_sides():
  assert sides(Closed()) == {}
  assert class_logits(Closed()) is None
