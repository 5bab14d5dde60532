"""Checkpoints: nothing is lost, whatever happens to the process, the disk and the files."""

import json
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from t2x.base.errors import UserError
from t2x.base.files import CHECKSUMS
from t2x.layers.arrays import named_leaves
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.optimizers import Adafactor
from t2x.train.params import Blueprint


@pytest.fixture(scope='session')
def state(tiny):
  """`state(seed, width)`: parameters, optimizer state, key and step, as a train state has them."""

  def make(key, width):
    params = dict(named_leaves(tiny(width, key)))
    optimizer = optax.adamw(1e-3).init(params)
    return {'params': params, 'opt_state': optimizer, 'key': key, 'step': jnp.zeros((), int)}

  jitted = jax.jit(make, static_argnums=1)
  return lambda seed=0, width=8: jitted(jax.random.key(seed), width)


def numbers(tree):
  keyed = lambda a: jnp.issubdtype(a.dtype, jax.dtypes.prng_key)  # noqa: E731
  return [np.array(jax.random.key_data(a) if keyed(a) else a) for a in jax.tree.leaves(tree)]


def assert_same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(numbers(a), numbers(b), strict=True):
    np.testing.assert_array_equal(x, y)


def abstract(tree):
  return jax.eval_shape(lambda: tree)


def save(checkpoints, state, losses):
  """One checkpoint a loss, from step 1; None has no metrics."""
  for step, loss in enumerate(losses, 1):
    checkpoints.save(step, state(step), {'at': step}, None if loss is None else {'loss': loss})
  checkpoints.wait()


def damage(folder, how):
  """Truncates, flips one bit of, or removes the largest file."""
  file = max((path for path in folder.rglob('*') if path.is_file()), key=lambda p: p.stat().st_size)
  content = bytearray(file.read_bytes())
  if how == 'removed':
    file.unlink()
    return
  content[len(content) // 2] ^= 1 << 3
  file.write_bytes(content[: len(content) // 2] if how == 'truncated' else content)


def test_restores_exactly_what_was_saved_and_into_the_same_classes(tmp_path, state):
  saved = state(3)
  checkpoints = Checkpoints(tmp_path / 'checkpoints')
  extra = {'data': 'fingerprint', 'sums': {'loss': [0.1, np.float32(2)]}}
  checkpoints.save(3, saved, extra, {'loss': 1.0})
  checkpoints.wait()
  restored, found = Checkpoints(tmp_path / 'checkpoints').restore(abstract(saved))
  assert_same(restored, saved)
  assert found == {'data': 'fingerprint', 'sums': {'loss': [0.1, 2.0]}}


def test_a_saved_state_may_be_donated_at_once(tmp_path):
  checkpoints = Checkpoints(tmp_path)
  overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
  array = jax.random.normal(jax.random.key(0), (1 << 20,))
  before = np.array(array)
  checkpoints.save(1, {'x': array})
  overwrite(overwrite(array)).block_until_ready()
  checkpoints.wait()
  restored, _ = checkpoints.restore({'x': jax.ShapeDtypeStruct((1 << 20,), jnp.float32)})
  np.testing.assert_array_equal(restored['x'], before)


def test_keeps_the_last_and_the_best(tmp_path, state):
  checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best=1)
  save(checkpoints, state, [3.0, 1.0, 2.0, None, 5.0])
  assert checkpoints.steps() == [2, 4, 5]
  assert (checkpoints.latest_step(), checkpoints.best_step()) == (5, 2)
  for which, step in (('last', 5), ('best', 2), (4, 4)):
    restored, extra = checkpoints.restore(abstract(state()), which)
    assert extra == {'at': step}
    assert_same(restored, state(step))


def test_best_may_be_the_largest_and_is_never_nan(tmp_path, state):
  checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric='accuracy', best_mode='max')
  for step, value in enumerate([0.5, float('nan'), 0.25], 1):
    checkpoints.save(step, state(step), {}, {'accuracy': value})
  checkpoints.wait()
  assert checkpoints.steps() == [1, 3]
  assert checkpoints.best_step() == 1
  with pytest.raises(UserError, match="'accuracy', which ranks checkpoints, is missing"):
    checkpoints.save(4, state(4), {}, {'loss': 1.0})


def test_the_newest_of_equals_is_the_best(tmp_path, state):
  checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=1)
  save(checkpoints, state, [1.0, 1.0, 2.0])
  assert (checkpoints.best_step(), checkpoints.steps()) == (2, [2, 3])


def test_metrics_attached_after_the_save_choose_what_is_kept(tmp_path, state):
  checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=1)
  for step, loss in enumerate([2.0, 1.0, None, 3.0, 0.5], 1):
    checkpoints.save(step, state(step))
    if loss is not None:
      checkpoints.attach(step, {'loss': loss})
    checkpoints.wait()
    assert checkpoints.metrics(step) == (None if loss is None else {'loss': loss})
    kept = {1: [1], 2: [2], 3: [2, 3], 4: [2, 4], 5: [5]}[step]
    assert checkpoints.steps() == kept
    assert checkpoints.best_step() == kept[0]
  # Another process goes on with what the first one knew.
  following = Checkpoints(tmp_path, keep_last=1, keep_best=1)
  save_at(following, state, 6, 0.75)
  assert following.steps() == [5, 6]
  assert following.restore(abstract(state()), 'best')[0]['step'] == state()['step']


def save_at(checkpoints, state, step, loss):
  checkpoints.save(step, state(step))
  checkpoints.attach(step, {'loss': loss})
  checkpoints.wait()


def test_metrics_of_a_checkpoint_that_could_not_be_saved_are_dropped(tmp_path, state, full_disk):
  checkpoints = Checkpoints(tmp_path, keep_last=9, max_failed_saves=9)
  save_at(checkpoints, state, 1, 1.0)
  large = {'noise': jax.random.normal(jax.random.key(0), (1 << 18,))}
  with full_disk(1 << 16):
    checkpoints.save(2, large)
    checkpoints.attach(2, {'loss': 0.5})
    with pytest.raises(UserError):
      checkpoints.wait()
  save_at(checkpoints, state, 3, 2.0)
  assert (checkpoints.steps(), checkpoints.best_step()) == ([1, 3], 1)
  assert (checkpoints.metrics(1), checkpoints.metrics(2)) == ({'loss': 1.0}, None)


@pytest.mark.parametrize('how', ['truncated', 'flipped', 'removed'])
def test_a_corrupt_checkpoint_gives_way_to_the_one_before(tmp_path, state, caplog, how):
  save(Checkpoints(tmp_path), state, [2.0, 1.0])
  damage(tmp_path / '2', how)
  checkpoints = Checkpoints(tmp_path)
  with caplog.at_level(logging.WARNING, 't2x'):
    restored, extra = checkpoints.restore(abstract(state()))
  assert extra == {'at': 1}
  assert_same(restored, state(1))
  assert 'step 2 is corrupt' in caplog.text
  assert 'using the checkpoint of step 1' in caplog.text
  # The run goes on from there and comes to the same step again.
  checkpoints.save(2, state(2), {'at': 'again'}, {'loss': 0.5})
  checkpoints.wait()
  assert checkpoints.restore(abstract(state()))[1] == {'at': 'again'}
  assert (tmp_path / 'corrupt-2').is_dir()


def test_a_copied_folder_is_not_a_checkpoint_of_its_name(tmp_path, state, caplog):
  save(Checkpoints(tmp_path), state, [2.0, 1.0])
  shutil.copytree(tmp_path / '2', tmp_path / '5')
  checkpoints = Checkpoints(tmp_path)
  with caplog.at_level(logging.WARNING, 't2x'):
    assert checkpoints.intact_step() == 2
  assert 'step 5 is corrupt (its files are those of step 2)' in caplog.text
  # Training resumes at step 2 and saves below the number of the copy.
  checkpoints.save(3, state(3), {'at': 3}, {'loss': 0.5})
  checkpoints.wait()
  assert Checkpoints(tmp_path).intact_step() == 3


def test_a_corrupt_best_gives_way_to_the_next_best(tmp_path, state):
  checkpoints = Checkpoints(tmp_path, keep_last=3)
  save(checkpoints, state, [1.0, 3.0, 2.0])
  damage(tmp_path / '1', 'flipped')
  assert checkpoints.restore(abstract(state()), 'best')[1] == {'at': 3}


def test_no_checkpoint_and_no_intact_checkpoint_are_errors(tmp_path, state):
  checkpoints = Checkpoints(tmp_path)
  with pytest.raises(UserError, match=r'^no checkpoint in'):
    checkpoints.restore(abstract(state()))
  save(checkpoints, state, [None])
  with pytest.raises(UserError, match=r'no checkpoint of step 7 .* its steps are \[1\]'):
    checkpoints.restore(abstract(state()), 7)
  with pytest.raises(UserError, match=r'no evaluated checkpoint in .* none is best'):
    checkpoints.restore(abstract(state()), 'best')
  (tmp_path / '1' / CHECKSUMS).unlink()
  with pytest.raises(UserError, match='no intact checkpoint'):
    checkpoints.restore(abstract(state()))


def test_different_shapes_are_named(tmp_path, state):
  checkpoints = Checkpoints(tmp_path)
  save(checkpoints, state, [None])
  with pytest.raises(UserError) as error:
    checkpoints.restore(abstract(state(0, 12)))
  assert 'params.table is (16, 8) in the checkpoint but (16, 12) in the config' in str(error.value)
  other = {**state(), 'ema': jnp.zeros(2)}
  del other['key']
  with pytest.raises(UserError) as error:
    checkpoints.restore(abstract(other))
  assert 'ema is not in the checkpoint' in str(error.value)
  assert 'key is only in the checkpoint' in str(error.value)


def test_the_state_of_another_optimizer_is_named_as_the_cause(tmp_path, tiny, state):
  """Of optax's Adafactor, which factors stacked arrays with separate heads."""
  saved = state()
  saved['opt_state'] = optax.adafactor(min_dim_size_to_factor=4).init(saved['params'])
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(1, saved)
  checkpoints.wait()
  rule = Adafactor(min_dim_size=4).direction(Blueprint(jax.eval_shape(tiny)).infos)
  with pytest.raises(UserError, match='optimizer state is that of another optimizer') as error:
    checkpoints.restore(abstract({**saved, 'opt_state': rule.init(saved['params'])}))
  assert 'Experiment.init_from starts a new run from its parameters' in str(error.value)


def test_a_full_disk_is_retried_the_requested_number_of_times(tmp_path, caplog, full_disk):
  checkpoints = Checkpoints(tmp_path, keep_last=9, max_failed_saves=2)
  large = {'noise': jax.random.normal(jax.random.key(0), (1 << 18,))}
  checkpoints.save(1, large)
  checkpoints.wait()
  with full_disk(1 << 16), caplog.at_level(logging.WARNING, 't2x'):
    checkpoints.save(2, large)
    checkpoints.save(3, large)
  assert caplog.text.count('training continues after failed save 1 of at most 2 in a row') == 1
  for step in (4, 5):  # There is room again: they count anew.
    checkpoints.save(step, large)
  checkpoints.wait()
  assert checkpoints.steps()[0] == 1
  assert checkpoints.steps()[-2:] == [4, 5]
  with full_disk(1 << 16):
    checkpoints.save(6, large)
    checkpoints.save(7, large)
    checkpoints.save(8, large)
    with pytest.raises(UserError, match='the checkpoint of step 5 is intact'):
      checkpoints.save(9, large)


@pytest.mark.parametrize('how', ['at once', 'later'])
def test_a_last_save_that_fails_is_an_error_even_if_failures_are_tolerated(
  tmp_path, state, monkeypatch, how, full_disk
):
  checkpoints = Checkpoints(tmp_path, keep_last=9, max_failed_saves=9)
  save(checkpoints, state, [1.0])
  checkpoints.finish()

  def fail(*_):
    raise OSError('no space left')

  if how == 'at once':
    with monkeypatch.context() as patch:
      patch.setattr(checkpoints.orbax, 'save', fail)
      checkpoints.save(2, state(2))
    with pytest.raises(UserError, match='the checkpoint of step 1 is intact'):
      checkpoints.finish()
  else:
    with full_disk(1 << 16), pytest.raises(UserError, match='the checkpoint of step 1 is intact'):
      checkpoints.save(2, {'noise': jax.random.normal(jax.random.key(0), (1 << 18,))})
      checkpoints.finish()
  checkpoints.save(3, state(3))
  checkpoints.finish()
  assert checkpoints.steps() == [1, 3]


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, state, capfd, full_disk):
  checkpoints = Checkpoints(tmp_path, keep_last=1)
  save(checkpoints, state, [1.0])
  noise = {**state(2), 'noise': jax.random.normal(jax.random.key(0), (1 << 18,))}
  with full_disk(1 << 16), pytest.raises(UserError) as error:
    checkpoints.save(2, noise, {}, {'loss': 0.5})
    checkpoints.wait()
  assert error.value.exit_code == 1
  assert 'File too large' in str(error.value)
  assert 'the checkpoint of step 1 is intact' in str(error.value)
  assert '\n' not in str(error.value)
  assert 'Traceback' not in capfd.readouterr().err
  assert checkpoints.steps() == [1]
  assert_same(checkpoints.restore(abstract(state()))[0], state(1))
  checkpoints.save(2, noise, {}, {'loss': 0.5})  # There is room again.
  checkpoints.wait()
  # What other threads were still writing when the save failed is gone by now.
  assert [path.name for path in tmp_path.iterdir()] == ['2']


def test_echoes_of_a_failed_save_are_not_shown(tmp_path, caplog):
  Checkpoints(tmp_path)
  try:
    ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(tmp_path / 'none')
  except Exception:
    logging.getLogger('asyncio').error('Future exception was never retrieved', exc_info=True)
  logging.getLogger('asyncio').error('another one')
  assert [record.getMessage() for record in caplog.records] == ['another one']


def test_a_save_cut_off_by_a_kill_is_not_a_checkpoint(tmp_path, state):
  save(Checkpoints(tmp_path), state, [1.0])
  cut = tmp_path / '2.orbax-checkpoint-tmp'
  (cut / 'state').mkdir(parents=True)
  checkpoints = Checkpoints(tmp_path)
  assert checkpoints.latest_step() == 1
  assert cut.exists()  # Reading removes nothing: the writer may be another process.
  checkpoints.save(2, state(2))
  checkpoints.wait()
  assert not cut.exists()
  assert checkpoints.steps() == [1, 2]


def test_files_do_not_depend_on_the_classes(tmp_path, state):
  checkpoints = Checkpoints(tmp_path)
  save(checkpoints, state, [None])
  about = json.loads((tmp_path / '1' / 'about' / 'metadata').read_text())
  assert about['arrays']['params.blocks.q'] == [3, 8, 2, 4]
  assert about['arrays']['params.mlp.0'] == [8, 16]
  assert about['arrays']['opt_state.0.mu.blocks.scale'] == [3, 8]
