"""Starting from another run: every parameter is loaded, fitted, or said to be new."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from t2x.base.errors import UserError
from t2x.data import Bytes, Characters, RunTokenizer
from t2x.data.tokenizers.characters import ByteTokenizer
from t2x.layers import LearnedGrid, TokenEmbedding, Tokens, param
from t2x.layers.arrays import named_leaves
from t2x.train import Experiment, Teacher, Trainer
from t2x.train.checkpoints.resize import (
  InterpolateGrid,
  InterpolatePositions,
  KeepNew,
  ResizeVocabulary,
  TakeLayers,
)
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.init_from import InitFrom
from t2x.train.params import Blueprint


def numbers(key, shape, dtype):
  """Numbers that differ from key to key, made without compiling anything."""
  seed = int(np.array(jax.random.key_data(key)).sum())
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


class Part(nnx.Module):
  def __init__(self, rngs, **shapes):
    for name, shape in shapes.items():
      setattr(self, name, param(numbers, shape, (None,) * len(shape), rngs, kind='table'))


class Model(nnx.Module):
  """A model whose vocabulary, positions and classes can be set, and whose table can be renamed."""

  def __init__(self, seed, vocab=5, positions=4, classes=3, table='table'):
    rngs = nnx.Rngs(seed)
    self.embedding = Part(rngs, **{table: (vocab, 2)})
    self.positions = Part(rngs, table=(positions, 2))
    self.blocks = nnx.List([Part(rngs, kernel=(2, 2)) for _ in range(2)])
    self.head = Part(rngs, kernel=(2, classes), bias=(classes,))


def by_name(model):
  return dict(named_leaves(model))


def save(folder, *models, metrics=None, **more):
  """A run with a checkpoint a model, from step 1."""
  checkpoints = Checkpoints(
    folder / 'checkpoints', keep_last=9, best_metric='bleu', best_mode='max'
  )
  for step, model in enumerate(models, 1):
    # Beside the parameters, what a train state has: it is neither read nor listed.
    state = {'params': by_name(model), 'opt_state': {'count': jnp.ones(3)}} | more
    checkpoints.save(step, state, metrics=metrics and {'bleu': metrics[step - 1]})
  checkpoints.close()
  return str(folder)


@pytest.fixture(scope='session')
def saved(tmp_path_factory):
  """(run folder, its model)."""
  model = Model(1)
  return save(tmp_path_factory.mktemp('init_from') / 'run', model), model


def load(model, run, **settings):
  """The model with the run's parameters, and what the table says of each of its parameters."""
  loading, table = InitFrom(run=run, **settings).plan(by_name(model))
  return jax.tree.unflatten(jax.tree.structure(model), loading().values()), table


def arrays(model):
  return {name: np.array(leaf) for name, leaf in named_leaves(model)}


def assert_taken(loaded, source, new, names):
  """The parameters of these names are those of `source`, all others those of `new`, bitwise."""
  source, new = arrays(source), arrays(new)
  for name, found in arrays(loaded).items():
    np.testing.assert_array_equal(found, source[name] if name in names else new[name], name)


def test_all_parameters_are_loaded_bitwise(saved):
  run, source = saved
  loaded, table = load(Model(2), run)
  assert_taken(loaded, source, source, arrays(source))
  assert jax.tree.structure(loaded) == jax.tree.structure(source)
  assert table.splitlines()[0] == (
    f'initialised from step 1 of {run}: 6 loaded, 0 resized, 0 new, 0 mismatched, 0 unused'
  )


def test_only_included_and_not_excluded_parameters_are_loaded(saved):
  run, source = saved
  new = Model(2)
  loaded, table = load(new, run, include=['blocks.*', 'head.*'], exclude=['.*.bias', 'blocks.0.*'])
  assert_taken(loaded, source, new, {'blocks.1.kernel', 'head.kernel'})
  told = {line.split()[0]: line for line in table.splitlines()}
  assert told['embedding.table'].endswith('new (not included)')
  assert told['head.bias'].endswith('new (excluded)')
  assert '2 loaded, 0 resized, 4 new, 0 mismatched, 0 unused' in table


def test_names_of_the_run_are_changed_to_ours(saved):
  run, source = saved
  rename = {r'^embedding.(\w)able': r'embedding.\1okens', r'blocks.0': 'blocks.9'}
  new = Model(2, table='tokens')
  loaded, table = load(new, run, rename={**rename, 'blocks.1': 'blocks.0', 'blocks.9': 'blocks.1'})
  np.testing.assert_array_equal(loaded.embedding.tokens[...], source.embedding.table[...])
  for ours, theirs in ((0, 1), (1, 0)):
    np.testing.assert_array_equal(
      loaded.blocks[ours].kernel[...], source.blocks[theirs].kernel[...]
    )
  assert 'embedding.tokens  5 x 2  embedding.table  loaded' in table


def test_the_moving_average_is_taken_where_there_is_one(tmp_path):
  model, ema = Model(1), Model(2)
  run = save(tmp_path, model, ema=by_name(ema))
  loaded, table = load(Model(3), run)
  assert_taken(loaded, ema, ema, arrays(ema))
  assert '(moving average)' in table
  assert_taken(load(Model(3), run, use_ema=False)[0], model, model, arrays(model))


def test_the_best_last_or_any_checkpoint_is_taken(tmp_path):
  models = [Model(seed) for seed in range(3)]
  run = save(tmp_path, *models, metrics=[0.1, 0.9, 0.5])
  for which, index in (('best', 1), ('last', 2), (1, 0)):
    loaded, _ = load(Model(9), run, checkpoint=which)
    assert_taken(loaded, models[index], models[index], arrays(loaded))


def test_a_head_for_other_classes_starts_anew(saved):
  run, source = saved
  new = Model(2, classes=7)
  for settings in ({'resize': {'head.*': KeepNew()}}, {'exclude': ['head.*']}):
    loaded, table = load(new, run, **settings)
    assert_taken(loaded, source, new, set(arrays(new)) - {'head.kernel', 'head.bias'})
    assert 'head.kernel      2 x 7  head.kernel      mismatched (2, 3), kept new (' in table
    assert '4 loaded, 0 resized, 0 new, 2 mismatched, 0 unused' in table


@pytest.mark.parametrize('size', [3, 8])
def test_a_resized_vocabulary_shares_its_first_tokens(saved, size):
  run, source = saved
  new = Model(2, vocab=size, classes=size)
  resize = {'embedding.table': ResizeVocabulary(), 'head.*': ResizeVocabulary()}
  loaded, table = load(new, run, resize=resize)
  shared = min(size, 5)
  np.testing.assert_array_equal(loaded.embedding.table[:shared], source.embedding.table[:shared])
  np.testing.assert_array_equal(loaded.embedding.table[shared:], new.embedding.table[shared:])
  np.testing.assert_array_equal(loaded.head.kernel[:, :3], source.head.kernel[...])
  np.testing.assert_array_equal(loaded.head.bias[3:], new.head.bias[3:])
  assert 'resized from (5, 2) (ResizeVocabulary())' in table


class Padded(nnx.Module):
  """Tables of tokens, padded to a multiple of 8 rows, and of positions, of which there are more than tokens."""

  def __init__(self, seed, vocab, positions):
    rngs = nnx.Rngs(seed)
    self.embedding = TokenEmbedding(2, vocab_size=vocab, vocab_multiple=8, init=numbers, rngs=rngs)
    self.positions = Part(rngs, table=(positions, 2))


@pytest.mark.parametrize(('vocab', 'rows'), [(250, 256), (261, 264), (263, 264), (270, 272)])
def test_the_padding_of_a_saved_vocabulary_is_not_copied_to_a_resized_one(tmp_path, vocab, rows):
  tokenizer = ByteTokenizer()
  assert tokenizer.vocab_size == 261
  source, new = Padded(1, 261, 263), Padded(2, vocab, 266)
  run = save(tmp_path / 'run', source)
  tokenizer.save(tmp_path / 'run' / 'tokenizer')
  resize = {'.*table': ResizeVocabulary()}
  plan = InitFrom(run=run, resize=resize).plan
  loading, table = plan(by_name(new), infos=Blueprint(new).infos)
  loaded = loading()
  tokens, shared = loaded['embedding.table'], min(261, rows)
  assert len(tokens) == rows
  np.testing.assert_array_equal(tokens[:shared], source.embedding.table[:shared])
  np.testing.assert_array_equal(tokens[shared:], new.embedding.table[shared:])
  assert 'resized from (261, 2) without padding of (264, 2) (ResizeVocabulary())' in table
  np.testing.assert_array_equal(loaded['positions.table'][:263], source.positions.table[...])
  np.testing.assert_array_equal(loaded['positions.table'][263:], new.positions.table[263:])


@pytest.mark.parametrize('length', [3, 10])
def test_learned_positions_are_stretched_linearly(saved, length):
  run, source = saved
  resize = {'positions.table': InterpolatePositions(num_extra=1)}
  loaded, _ = load(Model(2, positions=length), run, resize=resize)
  table = source.positions.table[...]
  expected = jax.image.resize(table[1:], (length - 1, 2), method='linear')
  np.testing.assert_allclose(loaded.positions.table[1:], expected, rtol=1e-6, atol=1e-7)
  np.testing.assert_array_equal(loaded.positions.table[:1], table[:1])


def test_a_stretched_line_is_a_line():
  line = jnp.arange(4.0)[:, None]
  stretched = InterpolatePositions()(line, jnp.zeros((8, 1)))
  np.testing.assert_allclose(stretched[1:-1, 0], np.arange(1, 7) / 2 - 0.25, rtol=1e-6)


def test_a_grid_with_a_class_token_is_resized_as_for_another_image(tmp_path):
  def build(seed, height, width):
    return LearnedGrid(
      2, height=height, width=width, num_extra=1, init=numbers, rngs=nnx.Rngs(seed)
    )

  source = build(1, 3, 3)
  run = save(tmp_path, source)
  resize = {'table': InterpolateGrid(num_extra=1, new=(2, 5))}
  loaded, _ = load(build(2, 2, 5), run, resize=resize)
  image = jax.image.resize(source.table[1:].reshape(3, 3, 2), (2, 5, 2), method='cubic')
  expected = np.concatenate([source.table[:1], image.reshape(-1, 2)])
  np.testing.assert_allclose(loaded.table[...], expected, rtol=1e-5, atol=1e-7)
  seen = source.embed(jnp.zeros((1, 11, 2)), Tokens.row(11, grid=(2, 5)))[0]
  np.testing.assert_allclose(loaded.table[...], seen, rtol=1e-5, atol=1e-7)


def test_layers_of_a_deeper_stack_are_copied(tmp_path):
  deep, start = Part(nnx.Rngs(0), kernel=(4, 2, 3)), Part(nnx.Rngs(1), kernel=(2, 2, 3))
  save(tmp_path, deep)
  result, _ = load(start, str(tmp_path), resize={'kernel': TakeLayers(layers=[3, 1])})
  np.testing.assert_array_equal(result.kernel[...], deep.kernel[...][np.array([3, 1])])
  for layers in ([0], [0, 4]):
    with pytest.raises(UserError, match='must be 2 numbers below 4, the layers of the saved stack'):
      load(start, str(tmp_path), resize={'kernel': TakeLayers(layers=layers)})


def test_parameters_land_in_the_shardings_of_the_new_model(saved):
  run, source = saved
  mesh = jax.make_mesh((1,), ('data',))
  sharding = NamedSharding(mesh, PartitionSpec(None))
  new = jax.device_put(Model(2, vocab=8), sharding)
  loaded, _ = load(new, run, resize={'embedding.*': ResizeVocabulary()})
  assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(loaded))
  np.testing.assert_array_equal(loaded.embedding.table[:5], source.embedding.table[...])


def test_the_table_lists_every_parameter_of_both_models(saved):
  run, _ = saved
  _, table = load(
    Model(2, vocab=8, classes=4, table='tokens'),
    run,
    exclude=['head.bias'],
    rename={'blocks.1.': 'blocks.2.'},
    resize={'head.kernel': ResizeVocabulary()},
  )
  assert table == (
    f'initialised from step 1 of {run}: 2 loaded, 1 resized, 2 new, 1 mismatched, 2 unused\n'
    'parameter         shape  from\n'
    'blocks.0.kernel   2 x 2  blocks.0.kernel  loaded\n'
    'blocks.1.kernel   2 x 2  -                new (not in the run)\n'
    'embedding.tokens  8 x 2  -                new (not in the run)\n'
    'head.bias         4      head.bias        mismatched (3,), kept new (excluded)\n'
    'head.kernel       2 x 4  head.kernel      resized from (2, 3) (ResizeVocabulary())\n'
    'positions.table   4 x 2  positions.table  loaded\n'
    '-                 2 x 2  blocks.1.kernel  unused\n'
    '-                 5 x 2  embedding.table  unused'
  )


def test_shapes_that_differ_are_an_error_that_names_all_of_them(saved):
  run, _ = saved
  with pytest.raises(UserError) as error:
    load(Model(2, classes=7, vocab=8), run)
  told = str(error.value)
  assert 'embedding.table is (5, 2) in the run but (8, 2) in the new model' in told
  assert 'head.kernel is (2, 3) in the run but (2, 7) in the new model' in told
  assert 'InitFrom.exclude' in told
  assert 'InitFrom.resize' in told


@pytest.mark.parametrize(
  ('resize', 'message'),
  [
    (
      InterpolateGrid(num_extra=0, new=(2, 4)),
      'the old table has 5 patches, which are not a square grid',
    ),
    (
      InterpolateGrid(num_extra=1, new=(2, 4)),
      'the new table has 7 patches, which are not a 2 x 4 grid',
    ),
    (InterpolatePositions(num_extra=5), 'num_extra = 5 must be less than the number of rows'),
    (lambda source, target: source, r'returns \(5, 2\)'),
  ],
)
def test_a_method_that_does_not_fit_the_shapes_is_an_error(saved, resize, message):
  with pytest.raises(UserError, match=message):
    load(Model(2, vocab=8), saved[0], resize={'embedding.table': resize})


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    (
      {'include': ['bloks.*']},
      "include: 'bloks.*' matches no parameter of the new model; .*blocks.",
    ),
    ({'exclude': ['hed.bias']}, "exclude: 'hed.bias' matches no parameter .*head.bias"),
    ({'resize': {'head': KeepNew()}}, "resize: 'head' matches no parameter .*head."),
    (
      {'rename': {'embeding': 'x'}},
      "rename: 'embeding' matches no parameter of step 1 .*embedding.",
    ),
    ({'rename': {r'blocks\..': 'blocks.0'}}, 'blocks.0.kernel and blocks.1.kernel the same name'),
    ({'rename': {'blocks': r'\1'}}, 'rename: .* invalid group'),
    ({'rename': {'^': 'params.'}}, 'loads nothing from step 1 .*the new model are blocks.0.kernel'),
    ({'include': ['(']}, 'include: .* is not a regular expression'),
    ({'exclude': 'head'}, r'exclude must be a list of patterns'),
    ({'checkpoint': 7}, 'no checkpoint of step 7'),
    ({'checkpoint': 'best'}, 'no evaluated checkpoint'),
  ],
)
def test_a_setting_that_fits_nothing_is_an_error(saved, settings, message):
  with pytest.raises(UserError, match=message):
    load(Model(2), saved[0], **settings)


def test_no_run_and_a_run_without_checkpoints_are_errors(tmp_path):
  with pytest.raises(UserError, match=r'InitFrom.run: no folder .*nowhere'):
    load(Model(2), str(tmp_path / 'nowhere'))
  with pytest.raises(UserError, match='no checkpoint in'):
    load(Model(2), str(tmp_path))


def test_another_tokenizer_than_that_of_the_run_is_noticed(tmp_path):
  own, other = Bytes().train(()), Characters(vocab_size=300).train(['abc'])
  own.save(tmp_path / 'tokenizer')
  init_from = InitFrom(run=str(tmp_path))
  assert [init_from.other_tokenizer(one) for one in (own, None, other)] == [False, False, True]


def test_the_tokenizer_of_a_run_knows_its_size(tmp_path):
  Characters(vocab_size=300).train(['abc']).save(tmp_path / 'tokenizer')
  config = RunTokenizer(run=str(tmp_path))
  assert config.is_fitted('')
  assert config.fit(list).vocab_size == 300
  assert RunTokenizer(run=str(tmp_path), vocab_size=300).train(()).vocab_size == 300
  with pytest.raises(UserError, match=r'RunTokenizer\.vocab_size = 7, but'):
    RunTokenizer(run=str(tmp_path), vocab_size=7).train(())


def test_a_seed_starts_from_a_run_of_its_own_and_has_a_teacher_of_its_own():
  runs = InitFrom(run='runs/first-{seed}')
  teacher = Teacher(model=TokenEmbedding, init_from=runs)
  trainer = Trainer(num_steps=1, batch_size=1, seed=3)
  experiment = Experiment(init_from=runs, teacher=teacher, trainer=trainer)
  assert experiment.init_from.run == experiment.teacher.init_from.run == 'runs/first-3'
