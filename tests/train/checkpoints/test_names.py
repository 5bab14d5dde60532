"""Arrays are read by the names that they have now, from checkpoints with their earlier names."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.files import write_checksums
from t2x.train.checkpoints.names import saved_names
from t2x.train.checkpoints.saved_params import SavedParams, restore_frozen
from t2x.train.checkpoints.store import Checkpoints

# A Switch Transformer with a dense layer, as saved before SwitchFeedForward was a mixture of MLPs.
OLD = {
  'params.blocks.0.feed_forward.up.kernel': 'params.blocks.0.feed_forward.up.kernel',
  'params.blocks.1.feed_forward.router': 'params.blocks.1.feed_forward.router.kernel',
  'params.blocks.1.feed_forward.up': 'params.blocks.1.feed_forward.expert.up.kernel',
  'params.blocks.1.feed_forward.down': 'params.blocks.1.feed_forward.expert.down.kernel',
  'opt_state.0.mu.blocks.1.feed_forward.up': 'opt_state.0.mu.blocks.1.feed_forward.expert.up.kernel',
  'opt_state.0.mu.blocks.1.feed_forward.router': 'opt_state.0.mu.blocks.1.feed_forward.router.kernel',
  'params.other.up': 'params.other.up',
}


def test_a_state_with_the_old_names_of_switch_layers_is_restored(tmp_path):
  checkpoints = Checkpoints(tmp_path)
  saved = {name: jnp.full(number + 2, float(number)) for number, name in enumerate(OLD)}
  checkpoints.save(3, saved)
  checkpoints.close()
  shapes = {new: jax.ShapeDtypeStruct(saved[old].shape, jnp.float32) for old, new in OLD.items()}
  restored, _ = checkpoints.restore(shapes)
  assert restored.keys() == set(OLD.values())
  for old, new in OLD.items():
    np.testing.assert_array_equal(restored[new], saved[old])
  params = SavedParams(checkpoints, 3)
  name = 'blocks.1.feed_forward.expert.down.kernel'
  assert params.shapes[name] == (5,)
  abstract = {name: shapes[f'params.{name}']}
  np.testing.assert_array_equal(params.read(abstract)[name], 3.0)


def test_frozen_parameters_with_old_names_are_read(tmp_path):
  checkpoints = Checkpoints(tmp_path / 'checkpoints')
  frozen = {'part.router': jnp.zeros(2), 'part.up': jnp.ones(3)}
  rows = {name: [None, list(array.shape)] for name, array in frozen.items()}
  checkpoints.orbax.write_arrays(checkpoints.folder / 'frozen', frozen)
  (checkpoints.folder / 'frozen' / 'rows.json').write_text(json.dumps(rows))
  write_checksums(checkpoints.folder / 'frozen')
  abstract = {
    'part.router.kernel': jax.ShapeDtypeStruct((2,), jnp.float32),
    'part.expert.up.kernel': jax.ShapeDtypeStruct((3,), jnp.float32),
  }
  read = restore_frozen(checkpoints, abstract)
  assert read['part.expert.up.kernel'].tolist() == [1.0] * 3
  checkpoints.save(1, {'params.bias': jnp.zeros(1)})
  checkpoints.close()
  read = SavedParams(checkpoints, 1).read(abstract)
  assert read['part.router.kernel'].tolist() == [0.0] * 2


def test_current_names_stay():
  names = ['a.router.kernel', 'a.router.bias.bias', 'a.expert.up.kernel', 'b.up', 'router_bias']
  assert saved_names(names) == {name: name for name in names}
