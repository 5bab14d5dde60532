"""Rules: which of our parameters lie in which tensor of theirs, and what is told when they do not."""

import numpy as np
import pytest

from t2x.errors import UserError
from t2x.interop.layouts import CONV1D
from t2x.interop.rules import Rule, Table, dense, norm

RULES = (
  Rule('embed', ('table',)),
  *dense('h.{}.qkv', *(f'body.stack.{{}}.{part}' for part in 'qkv'), layout=CONV1D),
  *norm('h.{}.ln', 'body.stack.{}.norm'),
  Rule('h.{}.extra', ('body.stack.{}.extra',)),
  *dense('pooler', 'head.pooler'),
)
# Six layers: two blocks in turn, three times. The second block alone has something extra.
SHAPES = {
  'table': (7, 4),
  **{
    f'body.stack.blocks.{block}.{name}': (3, *shape)
    for block in (0, 1)
    for name, shape in {
      'q.kernel': (4, 2, 2),
      'k.kernel': (4, 1, 2),
      'v.kernel': (4, 1, 2),
      'q.bias': (2, 2),
      'k.bias': (1, 2),
      'v.bias': (1, 2),
      'norm.scale': (4,),
    }.items()
  },
  'body.stack.blocks.1.extra': (3, 4),
}
TABLE = Table(RULES, SHAPES)
OURS = {
  name: np.random.default_rng(seed).normal(size=shape)
  for seed, (name, shape) in enumerate(SHAPES.items())
}


def theirs():
  """Our parameters in their tensors."""
  written = {}
  for name, tensor in TABLE.tensors.items():
    parts = [OURS[one] if index is None else OURS[one][index] for one, index in tensor.parts]
    written[name] = tensor.layout.whole(parts)
  return written


def shapes():
  return {name: tensor.shape for name, tensor in theirs().items()}


def test_layers_take_turns_in_the_blocks():
  assert set(TABLE.tensors) == {
    'embed',
    *(f'h.{i}.{name}' for i in range(6) for name in ('qkv.weight', 'qkv.bias', 'ln.weight')),
    *(f'h.{i}.extra' for i in (1, 3, 5)),
  }
  assert TABLE.tensors['h.3.extra'].parts == (('body.stack.blocks.1.extra', 1),)
  assert TABLE.their_shape('h.4.qkv.weight') == (4, 8)


def test_what_is_written_is_read_again():
  written = theirs()
  for name, array in OURS.items():
    views = TABLE.view(name, written)
    stacked = TABLE.is_stacked(name)
    assert stacked == (name != 'table')
    np.testing.assert_array_equal(np.stack(views) if stacked else views[0], array)


def test_a_parameter_without_a_rule_is_a_bug_that_is_seen():
  with pytest.raises(ValueError, match=r'no rule says where body\.gate lie'):
    Table(RULES, SHAPES | {'body.gate': (4,)})


def test_parts_that_the_model_lacks_are_told_and_passed_over():
  more = {'pooler.weight': (4, 4), 'pooler.bias': (4,), 'h.0.ln.bias': (4,), 'h.2.mask': (1,)}
  left = TABLE.check(shapes() | more, [r'h\.\d+\.mask'], 'FOLDER')
  assert left == ['pooler.weight', 'pooler.bias', 'h.0.ln.bias']


def test_missing_unknown_and_misshapen_tensors_are_told_at_once():
  found = shapes() | {'what': (1,), 'embed': (7, 5)}
  del found['h.2.ln.weight'], found['h.5.qkv.bias']
  with pytest.raises(UserError) as caught:
    TABLE.check(found, [], 'FOLDER')
  told = str(caught.value)
  assert told.startswith('FOLDER does not fit:')
  assert '2 tensors are missing: h.5.qkv.bias, h.2.ln.weight' in told
  assert '1 tensors are not known: what' in told
  assert 'embed is (7, 5), by config.json it is (7, 4)' in told


def test_of_many_missing_tensors_some_are_named():
  with pytest.raises(UserError, match=r'22 tensors are missing: embed, .* and 17 more'):
    TABLE.check({}, [], 'FOLDER')


@pytest.mark.parametrize(('other', 'holds'), [('beside', True), ('without', False)])
def test_rules_hold_beside_or_without_another_parameter(other, holds):
  rule = Rule('a', ('w',), **{other: 'other'})
  fallback = Rule('b', ('w',))
  assert ('a' in Table([rule, fallback], {'w': (1,)}).tensors) != holds
  both = Table([rule, fallback, Rule('c', ('other',))], {'w': (1,), 'other': (1,)})
  assert ('a' in both.tensors) == holds
