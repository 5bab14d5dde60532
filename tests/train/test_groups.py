"""Parameters by name, and groups of them: which are frozen, which learn at another rate."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tiny_lm import causal_lm, full_rows, lm

from t2x.base.errors import UserError
from t2x.data import TextFiles
from t2x.layers import RoPE
from t2x.layers.arrays import named_leaves
from t2x.models import Block, ParallelBlock
from t2x.train import (
  SGD,
  AdamW,
  Constant,
  Cosine,
  Experiment,
  Group,
  LayerDecay,
  Program,
  Trainer,
  TrainingRun,
  train,
)
from t2x.train.checkpoints.saved_params import SavedParams
from t2x.train.evaluation import saved_params
from t2x.train.groups import Groups
from t2x.train.params import Blueprint

LAYERS = 4
MLP_UP = 'body.stack.blocks.0.feed_forward.up.kernel'


def build(blocks=(Block,), **settings):
  return lm(num_layers=LAYERS, kinds=blocks, layers=settings, encoding=RoPE)


def experiment(*groups, model=None, source=None, **settings):
  defaults = {'num_steps': 4, 'batch_size': 4, 'optimizer': AdamW(weight_decay=0.1)}
  trainer = Trainer(**(defaults | {'schedule': Constant(peak=1e-2), 'groups': groups} | settings))
  return Experiment(model=model or build(), task=causal_lm(12, source), trainer=trainer)


def infos_of(**settings):
  return Blueprint(experiment(model=build(**settings)).shapes()).infos


def stepped(made, num=3):
  """All parameters before and after some steps, and the last gradient norm."""
  program = Program(made)
  state, frozen = program.init(0)
  before = program.groups.join(state.params, frozen)
  step = jax.jit(program.step())
  for seed in range(num):
    state, out = step(state, frozen, full_rows(4, 12, seed))
  after = program.groups.join(state.params, frozen)
  return *(jax.tree.map(np.asarray, one) for one in (before, after)), float(
    out.sums['grad_norm'][0]
  )


FIRST = (
  Group(match='embedding.*', frozen=True),
  Group(match=r'body\.stack.*', layers=(0, 2), frozen=True),
)


def test_each_index_of_a_stacked_parameter_knows_the_layers_that_use_it():
  assert infos_of()[MLP_UP].layers == ((0,), (1,), (2,), (3,))
  two = infos_of(blocks=(Block, ParallelBlock))
  assert two[MLP_UP].layers == ((0,), (2,))
  assert two[MLP_UP.replace('.0.', '.1.')].layers == ((1,), (3,))
  assert infos_of(num_groups=2)[MLP_UP].layers == ((0, 1), (2, 3))
  assert infos_of()['embedding.table'].layers is None


@pytest.mark.parametrize('blocks', [(Block,), (Block, ParallelBlock)])
def test_layers_of_a_repeating_group_are_numbered_through_the_body(blocks):
  """Against 2^-(3 - i) of layer i, whichever blocks repeat."""
  infos = infos_of(blocks=blocks)
  decay = Group(match=r'body\.stack.*', rate=LayerDecay(0.5))
  rates, factors = Groups([decay], infos).rates, {}
  for place in range(len(blocks)):
    name = MLP_UP.replace('.0.', f'.{place}.')
    for (layer,), factor in zip(infos[name].layers, rates[name].ravel(), strict=True):
      factors[layer] = float(factor)
  assert factors == {0: 0.125, 1: 0.25, 2: 0.5, 3: 1.0}
  last = Groups([Group(match=r'body\.stack.*', layers=(-3, None), frozen=True)], infos)
  frozen = [
    layer for name in last.frozen if 'up.kernel' in name for layer in last.frozen[name].layers
  ]
  assert sorted(frozen) == [(1,), (2,), (3,)]


def test_a_parameter_that_states_no_kind_is_refused():
  class Own(nnx.Module):
    def __init__(self):
      self.own = nnx.Param(jnp.zeros(3))

  with pytest.raises(UserError, match=r'own \[3\] does not state what kind of parameter it is'):
    Blueprint(Own())


def test_names_shapes_and_values_match_the_model():
  model = build()(rngs=nnx.Rngs(0))
  blueprint = Blueprint(jax.eval_shape(lambda: model))
  params = blueprint.params(model)
  assert params.keys() == dict(named_leaves(model)).keys()
  assert {name: one.shape for name, one in params.items()} == {
    name: info.shape for name, info in blueprint.infos.items()
  }
  again = blueprint.model(dict(reversed(params.items())))
  for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(again), strict=True):
    assert a is b


def test_frozen_layers_stay_as_they_were_and_have_no_optimizer_state():
  made = experiment(*FIRST)
  before, after, _ = stepped(made)
  np.testing.assert_array_equal(after['embedding.table'], before['embedding.table'])
  for name in before:
    if name.startswith('body.stack'):
      np.testing.assert_array_equal(after[name][:2], before[name][:2], name)
      assert (np.asarray(after[name][2:]) != before[name][2:]).any(), name
  shapes = {
    jax.tree_util.keystr(path): leaf.shape
    for path, leaf in jax.tree_util.tree_leaves_with_path(Program(made).abstract.opt_state)
  }
  assert not any('embedding.table' in name for name in shapes)
  assert {shape[0] for name, shape in shapes.items() if 'body.stack' in name} == {2}


def test_a_step_with_frozen_layers_is_the_step_of_masked_gradients():
  """Against one gradient of the whole model, of which the frozen parts are left out by hand."""
  made = experiment(*FIRST, optimizer=SGD(), clip_norm=0.01)
  program = Program(dataclasses.replace(made, trainer=dataclasses.replace(made.trainer, groups=())))
  state, _ = program.init(0)

  def loss(params):
    sums = made.task.sums(program.blueprint.model(params), full_rows(4, 12), None).metrics
    return sums['loss'][0] / sums['loss'][1]

  grads = dict(jax.jit(jax.grad(loss))(state.params))
  grads.pop('embedding.table')
  grads = {n: g[2:] if n.startswith('body.stack') else g for n, g in grads.items()}
  norm = optax.global_norm(grads)
  _, after, found = stepped(made, 1)
  assert found == pytest.approx(float(norm), rel=1e-5)
  for name, grad in grads.items():
    whole = state.params[name]
    wanted = (whole[2:] if name.startswith('body.stack') else whole) - 1e-2 * grad * 0.01 / norm
    got = after[name][2:] if name.startswith('body.stack') else after[name]
    np.testing.assert_allclose(got, wanted, atol=1e-7)


@pytest.mark.parametrize(
  'layers',
  [(1, 3), *(pytest.param(rows, marks=pytest.mark.nightly) for rows in [(0, 1), (-1, None)])],
)
def test_any_range_of_layers_may_be_frozen(layers):
  before, after, _ = stepped(experiment(Group(match=r'body\.stack.*', layers=layers, frozen=True)))
  kept = [*range(LAYERS)][slice(*layers)]
  moved = [i for i in range(LAYERS) if (after[MLP_UP][i] != before[MLP_UP][i]).any()]
  assert moved == [i for i in range(LAYERS) if i not in kept]


def test_a_factor_scales_the_whole_update_by_layer_decay_included():
  rates = (
    Group(match=r'body\.stack.*', rate=LayerDecay(0.5)),
    Group(match='embedding.*', rate=3.0),
  )
  before, plain, _ = stepped(experiment(), 1)
  _, scaled, _ = stepped(experiment(*rates), 1)
  factors = np.array([0.125, 0.25, 0.5, 1.0])
  for name in before:
    change = scaled[name] - before[name]
    factor = 1.0
    if name.startswith('body.stack'):
      factor = factors.reshape(-1, *[1] * (change.ndim - 1))
    elif name == 'embedding.table':
      factor = 3.0
    np.testing.assert_allclose(change, factor * (plain[name] - before[name]), atol=2e-7)


def test_a_schedule_is_used_in_place_of_the_trainers():
  own = Group(match='embedding.*', rate=Cosine(peak=2e-2, warmup_steps=2))
  before, plain, _ = stepped(experiment(optimizer=SGD()), 1)
  _, other, _ = stepped(experiment(own, optimizer=SGD()), 1)
  change, usual = (one['embedding.table'] - before['embedding.table'] for one in (other, plain))
  np.testing.assert_allclose(change, usual * (2e-2 / 3) / 1e-2, atol=1e-7)
  np.testing.assert_array_equal(other[MLP_UP], plain[MLP_UP])


def test_the_first_group_that_matches_counts():
  groups = Groups((Group(match='.*bias', rate=2.0), Group(match='.*', rate=3.0)), infos_of())
  assert groups.rates['body.final_norm.bias'] == 2.0
  assert groups.rates['embedding.table'] == 3.0


def test_split_and_join_are_inverse_for_any_rows():
  infos = infos_of()
  params = {n: jnp.sin(jnp.arange(i.size, dtype=float).reshape(i.shape)) for n, i in infos.items()}
  for layers in ((0, 2), (1, 3), (2, 4), (0, None)):
    groups = Groups([Group(match='body.stack.*kernel', layers=layers, frozen=True)], infos)
    joined = groups.join(*groups.split(params))
    assert list(joined) == list(params)
    for name in params:
      np.testing.assert_array_equal(joined[name], jnp.asarray(params[name]), name)


@pytest.mark.parametrize(
  ('groups', 'model', 'message'),
  [
    (
      [Group(match='embeding.*', frozen=True)],
      {},
      "'embeding.*' matches no parameter of the model; .*embedding.table",
    ),
    ([Group(match='.*', frozen=True)], {}, 'leave at least one parameter to train'),
    (
      [Group(match='.*', rate=2.0), Group(match='body.*', rate=3.0)],
      {},
      r"'body.*' has no effect: earlier groups",
    ),
    ([Group(match='embedding.*', layers=(0, 1))], {}, r'has no effect: .* in layers \(0, 1\)'),
    ([Group(match='body.*', layers=(9, 12))], {}, r'has no effect: .* in layers \(9, 12\)'),
    (
      [Group(match='body.*', layers=(0, 1))],
      {'num_groups': 2},
      'layers share the parameter .* remove Group.layers',
    ),
    ([Group(match='body.*', rate=LayerDecay(0.5))], {}, 'body.final_norm.* is not in a layer'),
    (
      [Group(match='body.stack.*', rate=LayerDecay(0.5))],
      {'num_groups': 1},
      'layers share the parameter .* a number',
    ),
  ],
)
def test_a_group_that_cannot_have_its_effect_is_refused(groups, model, message):
  with pytest.raises(UserError, match=message):
    _ = Program(experiment(*groups, model=build(**model))).groups


def test_settings_of_a_group_that_contradict_each_other_are_refused():
  with pytest.raises(UserError, match='rate has no effect on the frozen'):
    Group(match='x', frozen=True, rate=2.0)
  with pytest.raises(UserError, match=r"'\('.* is not a regular expression"):
    Group(match='(')


def test_the_table_counts_by_layer():
  groups = (*FIRST, Group(match=r'body\.stack.*', rate=LayerDecay(0.5)))
  lines = [line.split() for line in Program(experiment(*groups)).groups.table().splitlines()]
  rows = {' '.join(line[:-4] or line): line for line in lines}
  table = '\n'.join(' '.join(line) for line in lines)
  layer = Blueprint(experiment().shapes()).infos
  size = sum(i.size for n, i in layer.items() if n.startswith('body.stack')) // LAYERS
  assert f'body.stack, layer 1 {size:,} 0 frozen' in table, rows
  assert f'body.stack, layer 2 {size:,} {size:,} x 0.5' in table
  assert 'embedding 4,176 0 frozen' in table


@pytest.fixture
def trained(tmp_path, monkeypatch):
  """A run with frozen layers: (experiment, folder)."""
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  (tmp_path / 'text.txt').write_text('the cat sees the dog. ' * 400)
  source = TextFiles(train=str(tmp_path / 'text.txt'), validation=str(tmp_path / 'text.txt'))
  made = experiment(*FIRST, source=source, ema_decay=0.5, eval_every=0, eval_batches=1)
  train(made, tmp_path / 'run', '')
  return made, tmp_path / 'run'


def test_frozen_parameters_are_saved_once_and_read_with_every_checkpoint(trained):
  made, folder = trained
  about = json.loads((folder / 'checkpoints/4/about/metadata').read_text())
  assert 'params.embedding.table' not in about['arrays']
  assert about['arrays'][f'params.{MLP_UP}'][0] == 2
  run = TrainingRun(made, folder)
  state, frozen, _ = run.restore()
  params, step, _ = saved_params(run.program, run.checkpoints)
  assert step == 4
  wanted = run.program.eval_params(state, frozen)
  first, first_frozen = run.program.init(0)
  start = run.program.groups.join(first.params, first_frozen)
  for name, array in wanted.items():
    np.testing.assert_array_equal(params[name], array, name)
  np.testing.assert_array_equal(params[MLP_UP][:2], start[MLP_UP][:2])
  assert (np.asarray(params[MLP_UP][2:]) != np.asarray(start[MLP_UP][2:])).any()
  # Another run may start from it, whatever it freezes itself.
  saved = SavedParams(run.checkpoints, 4)
  assert saved.shapes == {n: i.shape for n, i in run.program.blueprint.infos.items()}


def test_frozen_parameters_of_a_run_that_was_never_saved_are_removed(trained):
  made, folder = trained
  shutil.rmtree(folder / 'checkpoints/4')
  trainer = dataclasses.replace(made.trainer, groups=())
  TrainingRun(dataclasses.replace(made, trainer=trainer), folder).init()
  assert not (folder / 'checkpoints/frozen').exists()


def test_damaged_frozen_parameters_are_an_error(trained):
  made, folder = trained
  files = [p for p in (folder / 'checkpoints/frozen').rglob('*') if p.is_file()]
  max(files, key=lambda path: path.stat().st_size).write_bytes(b'')
  with pytest.raises(UserError, match='frozen is corrupt'):
    TrainingRun(made, folder).restore()
  shutil.rmtree(folder / 'checkpoints/frozen')
  with pytest.raises(UserError, match='does not have the frozen parameters of this config'):
    TrainingRun(made, folder).restore()
