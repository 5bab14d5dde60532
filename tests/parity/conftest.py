"""Models of transformers, saved by themselves, read by us: same numbers, there and back.

Every trainable parameter is perturbed first: at its initial value a bias is zero and an activation
nearly linear, and hide what is wrong with them.
"""

import collections
import copy
import functools
import re
import tempfile

import jax
import numpy as np
import pytest
from flax import nnx

from t2x.api import read_config
from t2x.arrays import named_leaves
from t2x.interop import Source, export
from t2x.interop.rules import Table

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'parity' is not installed")
# Threads that wait for each other take most of the time of models as small as these.
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# Differences are told as parts of the largest logit.
TOLERANCE = 1e-5
# Of gradients, as parts of a tensor's largest; and what is nothing, as a part of the largest of all.
GRADIENT_TOLERANCE = 1e-4
NOTHING = 1e-6
COLUMNS = {
  'parameters': 'parameters',
  'difference': 'largest difference',
  'default': 'as initialised',
  'gradient': 'gradients',
  'back': 'export and back',
  'decoding': 'decoding',
  'training': '50 steps',
}


@pytest.fixture
def table(tell):
  """`table[family][column] = text` puts a cell into the table that the run ends with."""
  rows: dict[str, dict[str, str]] = collections.defaultdict(dict)
  yield rows
  for family, row in rows.items():
    tell(
      'parity with transformers',
      family,
      {told: row.get(column, '') for column, told in COLUMNS.items()},
    )


@functools.cache
def build(gin):
  """The builder of a model in gin text."""
  with tempfile.NamedTemporaryFile('w', suffix='.gin') as file:
    file.write(gin)
    file.flush()
    return read_config([file.name]).build().model


@functools.cache
def shapes(gin):
  """Those of a model in gin text."""
  return jax.eval_shape(lambda: build(gin)(rngs=nnx.Rngs(0)))


@pytest.fixture
def perturbed():
  """`perturbed(model)`: theirs, in place, every trainable parameter + N(0, std)."""

  def perturb(model, std=0.2):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
      for parameter in model.parameters():
        if parameter.requires_grad:
          parameter.add_(torch.randn(parameter.shape, generator=generator) * std)
    return model.eval()

  return perturb


@pytest.fixture
def imported_from():
  """`imported_from(folder)`: the model of a folder as ours."""

  def read(folder):
    source = Source(folder)
    return source.read(shapes(source.gin))

  return read


@pytest.fixture
def imported(tmp_path, imported_from):
  """`imported(model)`: theirs, by way of a folder that it saved, as ours."""

  def read(model):
    folder = tmp_path / f'theirs-{len(list(tmp_path.iterdir()))}'
    model.save_pretrained(folder)
    return imported_from(folder)

  return read


@pytest.fixture
def exported(tmp_path):
  """`exported(model, theirs)`: ours as a folder, loaded by transformers as the class of `theirs`.

  More arguments are those of their constructor.
  """

  def write(model, theirs, **more):
    folder = tmp_path / f'ours-{len(list(tmp_path.iterdir()))}'
    leaves = dict(named_leaves(model))
    tokens = {key: value for key, value in theirs.config.to_dict().items() if '_token_id' in key}
    family = export(model, build, folder, lambda name: np.asarray(leaves[name]), extra=tokens)
    assert family.model_type == theirs.config.model_type
    loaded, info = type(theirs).from_pretrained(folder, output_loading_info=True, **more)
    # What says nothing to us says nothing to them: sinusoids they make themselves.
    ignored = '|'.join(family.ignored)
    assert not [name for name in info['missing_keys'] if not re.fullmatch(ignored, name)], info
    assert not info['unexpected_keys'], info
    return loaded.eval()

  return write


@pytest.fixture
def agree(table, perturbed, imported, exported):
  """`agree(family, make, theirs, ours, **more)`: the whole round, perturbed and as initialised.

  `make()` gives their model, `theirs(model)` and `ours(model)` the outputs to compare: arrays, or
  tuples of them, on valid positions. `more` is what loading theirs needs beside the folder.
  """

  def difference(got, wanted):
    got, wanted = (one if isinstance(one, tuple) else (one,) for one in (got, wanted))
    return max(
      float(np.abs(np.asarray(g) - w).max() / np.abs(w).max())
      for g, w in zip(got, wanted, strict=True)
    )

  def numbers(output):
    if isinstance(output, tuple):
      return tuple(one.detach().numpy() for one in output)
    return output.detach().numpy()

  def check(family, make, theirs, ours, **more):
    torch.manual_seed(0)
    plain = make().eval()
    row = table[family]
    found = difference(ours(imported(plain)), numbers(theirs(plain)))
    row['default'] = f'{found:.0e}'
    assert found < TOLERANCE, f'as initialised: {found}'
    model = perturbed(make())
    wanted = numbers(theirs(model))
    mine = imported(model)
    found = difference(ours(mine), wanted)
    row['parameters'] = f'{sum(leaf.size for leaf in jax.tree.leaves(mine)):,}'
    row['difference'] = f'{found:.0e}'
    assert found < TOLERANCE, found
    back = difference(numbers(theirs(exported(mine, model, **more))), wanted)
    row['back'] = f'{back:.0e}'
    assert back < TOLERANCE, f'exported: {back}'
    return model, mine

  return check


@pytest.fixture
def gradients(table, tmp_path):
  """`gradients(family, model, mine, theirs, ours, vanishing='')`: of one loss, tensor by tensor.

  `theirs(model)` and `ours(model)` give the loss of the same batch as a scalar. Tensors whose names
  `vanishing` matches (a bias of keys moves no probability) must be rounding in both.
  """

  def check(family, model, mine, theirs, ours, vanishing='(?!)'):
    model.zero_grad()
    theirs(model).backward()
    # Saved as if they were parameters: the rules read names as they are saved.
    slopes = copy.deepcopy(model)
    with torch.no_grad():
      for slope, parameter in zip(slopes.parameters(), model.parameters(), strict=True):
        slope.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
    slopes.save_pretrained(tmp_path / 'gradients')
    source = Source(tmp_path / 'gradients')
    leaves = dict(named_leaves(jax.jit(jax.grad(ours))(mine)))
    rules = Table(source.family.rules, {name: leaf.shape for name, leaf in leaves.items()})
    scale = max(np.abs(source.tensors[name]).max() for name in rules.tensors)
    largest = 0.0
    for name, tensor in rules.tensors.items():
      parts = [np.asarray(leaves[one] if i is None else leaves[one][i]) for one, i in tensor.parts]
      wanted, got = source.tensors[name], tensor.layout.whole(parts)
      if re.search(vanishing, name):
        assert max(np.abs(wanted).max(), np.abs(got).max()) < NOTHING * scale, name
        continue
      found = float(np.abs(got - wanted).max() / np.abs(wanted).max())
      assert found < GRADIENT_TOLERANCE, f'gradient of {name}: {found}'
      largest = max(largest, found)
    table[family]['gradient'] = f'{largest:.0e}'

  return check
