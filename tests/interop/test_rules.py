"""Rules: the mapping of t2x parameters to Hugging Face tensors, and errors for tensors that do not match."""

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.interop.layouts import CONV1D, GROUPED, LINEAR
from t2x.interop.rules import Rule, Table, block, dense, norm

RULES = (
  Rule('embed', ('table',)),
  *dense('h.{}.qkv', *(f'body.stack.{{}}.{part}' for part in 'qkv'), layout=CONV1D),
  *norm('h.{}.ln', 'body.stack.{}.norm'),
  Rule('h.{}.extra', ('body.stack.{}.extra',)),
  *dense('pooler', 'head.pooler'),
)
# Six layers: two alternating blocks, three times. Only the second block has an extra parameter.
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


def written(table, arrays):
  """Returns the tensors of t2x parameters."""
  return {
    name: tensor.layout.join([arrays[name][index] for name, index in tensor.parts])
    for name, tensor in table.tensors.items()
  }


def tensors():
  return written(TABLE, PARAMETERS)


def arrays(shapes):
  return {
    name: np.random.default_rng(seed).normal(size=shape)
    for seed, (name, shape) in enumerate(shapes.items())
  }


def assert_read_again(table, parameters):
  tensors = written(table, parameters)
  assert {name: tensor.shape for name, tensor in tensors.items()} == {
    name: table.tensor_shape(name) for name in table.tensors
  }
  for name, array in parameters.items():
    indices = sorted(table.pieces[name])
    lead = array.shape[: len(indices[0])]
    assert indices == [*np.ndindex(*lead)]
    views = np.stack([table.view(name, index, tensors) for index in indices])
    np.testing.assert_array_equal(views.reshape(array.shape), array)


PARAMETERS = arrays(SHAPES)


def shapes():
  return {name: tensor.shape for name, tensor in tensors().items()}


def test_layers_take_turns_in_the_blocks():
  assert set(TABLE.tensors) == {
    'embed',
    *(f'h.{i}.{name}' for i in range(6) for name in ('qkv.weight', 'qkv.bias', 'ln.weight')),
    *(f'h.{i}.extra' for i in (1, 3, 5)),
  }
  assert TABLE.tensors['h.3.extra'].parts == (('body.stack.blocks.1.extra', (1,)),)
  assert TABLE.tensor_shape('h.4.qkv.weight') == (4, 8)


def test_written_files_can_be_read():
  assert_read_again(TABLE, PARAMETERS)
  assert {name: len(next(iter(TABLE.pieces[name]))) for name in PARAMETERS} == {
    name: 0 if name == 'table' else 1 for name in PARAMETERS
  }


def of_blocks(shapes, repeats=3):
  """Returns the shapes of parameters of two alternating blocks, `repeats` times."""
  return {
    f'body.stack.blocks.{block}.{name}': (repeats, *shape)
    for block in (0, 1)
    for name, shape in shapes.items()
  }


def test_a_tensor_for_each_expert_is_read_again():
  body = 'body.stack.{}.feed_forward'
  rules = [
    Rule('h.{}.gate.weight', (f'{body}.router',), LINEAR),
    Rule('h.{}.experts.{}.w1.weight', (f'{body}.up.{{}}',), LINEAR),
    Rule('h.{}.experts.{}.w2.weight', (f'{body}.down.{{}}',), LINEAR),
  ]
  sizes = {
    'feed_forward.router': (6, 4),
    'feed_forward.up': (4, 6, 5),
    'feed_forward.down': (4, 5, 6),
  }
  table = Table(rules, of_blocks(sizes))
  assert len(table.tensors) == 6 * (1 + 4 + 4)
  assert table.tensor_shape('h.5.experts.3.w1.weight') == (5, 6)
  parameters = arrays(table.shapes)
  assert_read_again(table, parameters)
  np.testing.assert_array_equal(
    written(table, parameters)['h.3.experts.2.w1.weight'],
    parameters['body.stack.blocks.1.feed_forward.up'][1, 2].T,
  )


def test_experts_of_some_of_the_layers_are_read_again():
  sizes = {
    'body.stack.blocks.0.norm.scale': (3, 6),
    'body.stack.blocks.1.feed_forward.up': (3, 4, 6, 5),
  }
  rules = [
    *norm('h.{}.ln', 'body.stack.{}.norm'),
    Rule('h.{}.experts.expert_{}.wi.weight', ('body.stack.{}.feed_forward.up.{}',), LINEAR),
  ]
  table = Table(rules, sizes)
  experts = [name for name in table.tensors if 'expert' in name]
  assert experts == [
    f'h.{layer}.experts.expert_{i}.wi.weight' for layer in (1, 3, 5) for i in range(4)
  ]
  assert_read_again(table, arrays(sizes))
  assert (
    table.check(
      dict.fromkeys(table.tensors, (5, 6))
      | {'h.0.ln.weight': (6,), 'h.2.ln.weight': (6,), 'h.4.ln.weight': (6,)},
      [],
      'FOLDER',
    )
    == []
  )


# Heads of queries, keys and values in one tensor.
@pytest.mark.parametrize('kv_heads', [4, 2, 1])
def test_interleaved_queries_keys_and_values_are_read_again(kv_heads):
  sizes = {
    'mixer.q.kernel': (6, 4, 3),
    'mixer.k.kernel': (6, kv_heads, 3),
    'mixer.v.kernel': (6, kv_heads, 3),
    'mixer.q.bias': (4, 3),
    'mixer.k.bias': (kv_heads, 3),
    'mixer.v.bias': (kv_heads, 3),
    'mixer.out.kernel': (4, 3, 6),
  }
  rules = block(
    'h.{}', norms=('ln_1', 'ln_2'), mixer=('qkv', 'out'), feed_forward=('up', 'down'), qkv=GROUPED
  )
  table = Table([*rules], of_blocks(sizes))
  assert table.tensor_shape('h.5.qkv.weight') == (3 * (4 + 2 * kv_heads), 6)
  assert_read_again(table, arrays(table.shapes))


@pytest.mark.parametrize(
  ('norms', 'parts'),
  [
    (('mixer_wiring.norm', 'feed_forward_wiring.norm'), ('up', 'down')),
    (('norm', 'feed_forward_norm'), ('gate', 'up', 'down')),
  ],
)
def test_the_rules_of_a_block_name_its_norms_attention_and_feed_forward(norms, parts):
  parameters = [f'{name}.scale' for name in norms]
  parameters += [f'mixer.{name}.kernel' for name in ('q', 'k', 'v', 'out')]
  parameters += [f'feed_forward.{name}.kernel' for name in parts]
  names = [
    'ln_1',
    'ln_2',
    'attn.q',
    'attn.k',
    'attn.v',
    'attn.o',
    *(f'mlp.{name}' for name in parts),
  ]
  rules = block('h.{}', norms=names[:2], mixer=names[2:6], feed_forward=names[6:])
  table = Table([*rules], {f'body.stack.blocks.0.{name}': (1, 2, 2) for name in parameters})
  assert {name: tensor.parts for name, tensor in table.tensors.items()} == {
    f'h.0.{name}.weight': ((f'body.stack.blocks.0.{parameter}', (0,)),)
    for name, parameter in zip(names, parameters, strict=True)
  }


def test_a_parameter_without_a_rule_raises():
  with pytest.raises(ValueError, match=r'no rule for the parameters body\.gate'):
    Table(RULES, SHAPES | {'body.gate': (4,)})


def test_parts_that_the_model_lacks_are_skipped_and_reported():
  more = {'pooler.weight': (4, 4), 'pooler.bias': (4,), 'h.0.ln.bias': (4,), 'h.2.mask': (1,)}
  left = TABLE.check(shapes() | more, [r'h\.\d+\.mask'], 'FOLDER')
  assert left == ['pooler.weight', 'pooler.bias', 'h.0.ln.bias']


def test_missing_unknown_and_misshapen_tensors_are_one_error():
  found = shapes() | {'what': (1,), 'embed': (7, 5)}
  del found['h.2.ln.weight'], found['h.5.qkv.bias']
  with pytest.raises(UserError) as caught:
    TABLE.check(found, [], 'FOLDER')
  told = str(caught.value)
  assert told.startswith('FOLDER does not match its config.json:')
  assert '2 tensors are missing: h.5.qkv.bias, h.2.ln.weight' in told
  assert '1 tensors are unknown: what' in told
  assert 'embed has shape (7, 5), config.json requires (7, 4)' in told


def test_of_many_missing_tensors_some_are_named():
  with pytest.raises(UserError, match=r'22 tensors are missing: embed, .* and 17 more'):
    TABLE.check({}, [], 'FOLDER')


def test_a_tensor_of_a_missing_layer_is_unknown_beside_another_rule_of_its_name():
  rules = [*RULES, *norm('h.{}.ln', 'body.stack.{}.feed_forward_norm')]
  found = shapes() | {'h.6.ln.weight': (4,)}
  with pytest.raises(UserError, match=r'1 tensors are unknown: h\.6\.ln\.weight'):
    Table(rules, SHAPES).check(found, [], 'FOLDER')


@pytest.mark.parametrize(('other', 'holds'), [('requires', True), ('excludes', False)])
def test_rules_hold_beside_or_without_another_parameter(other, holds):
  rule = Rule('a', ('w',), **{other: 'other'})
  fallback = Rule('b', ('w',))
  assert ('a' in Table([rule, fallback], {'w': (1,)}).tensors) != holds
  both = Table([rule, fallback, Rule('c', ('other',))], {'w': (1,), 'other': (1,)})
  assert ('a' in both.tensors) == holds
