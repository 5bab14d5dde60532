"""Models of transformers, saved by themselves, read by us: same numbers, there and back.

Every trainable parameter is perturbed first: at its initial value a bias is zero and an activation
nearly linear, and hide what is wrong with them.
"""

import collections
import tempfile

import jax
import numpy as np
import pytest
from flax import nnx

from t2x.commands import load
from t2x.interop import Source, export
from t2x.train.checkpoints import named_leaves

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'parity' is not installed")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# Differences are told as parts of the largest logit.
TOLERANCE = 1e-5
COLUMNS = {
  'parameters': 'parameters',
  'difference': 'largest difference',
  'default': 'as initialised',
  'gradient': 'gradients',
  'back': 'export and back',
  'decoding': 'decoding',
  'training': '50 steps',
}
TABLE: dict[str, dict[str, str]] = collections.defaultdict(dict)


def pytest_terminal_summary(terminalreporter):
  """The table of the README's section on interoperability."""
  if TABLE:
    terminalreporter.section('parity with transformers')
    terminalreporter.write_line('| family | ' + ' | '.join(COLUMNS.values()) + ' |')
    terminalreporter.write_line('|---' * (len(COLUMNS) + 1) + '|')
    for family, row in sorted(TABLE.items()):
      cells = (row.get(column, '') for column in COLUMNS)
      terminalreporter.write_line(f'| {family} | ' + ' | '.join(cells) + ' |')


@pytest.fixture
def table():
  """`table[family][column] = text` puts a cell into the table that the run ends with."""
  return TABLE


def build(gin):
  """The builder of a model in gin text."""
  with tempfile.NamedTemporaryFile('w', suffix='.gin') as file:
    file.write(gin)
    file.flush()
    return load([file.name]).build().model


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
def imported(tmp_path):
  """`imported(model)`: theirs, by way of a folder that it saved, as ours."""

  def read(model):
    folder = tmp_path / f'theirs-{len(list(tmp_path.iterdir()))}'
    model.save_pretrained(folder)
    source = Source(folder)
    builder = build(source.gin)
    return source.read(jax.eval_shape(lambda: builder(rngs=nnx.Rngs(0))))

  return read


@pytest.fixture
def exported(tmp_path):
  """`exported(model, theirs)`: ours as a folder, loaded by transformers as the class of `theirs`."""

  def write(model, theirs):
    folder = tmp_path / f'ours-{len(list(tmp_path.iterdir()))}'
    leaves = dict(named_leaves(model))
    tokens = {key: value for key, value in theirs.config.to_dict().items() if '_token_id' in key}
    family = export(model, build, folder, lambda name: np.asarray(leaves[name]), extra=tokens)
    assert family.model_type == theirs.config.model_type
    loaded, info = type(theirs).from_pretrained(folder, output_loading_info=True)
    assert not info['missing_keys'], info
    assert not info['unexpected_keys'], info
    return loaded.eval()

  return write


@pytest.fixture
def agree(table, perturbed, imported, exported):
  """`agree(family, make, theirs, ours)`: the whole round, perturbed and as initialised.

  `make()` gives their model, `theirs(model)` and `ours(model)` the outputs to compare: arrays, or
  tuples of them, on valid positions.
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

  def check(family, make, theirs, ours):
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
    back = difference(numbers(theirs(exported(mine, model))), wanted)
    row['back'] = f'{back:.0e}'
    assert back < TOLERANCE, f'exported: {back}'
    return model, mine

  return check
