"""Models saved by transformers and imported by t2x: equal outputs, after import and after export.

Every trainable parameter is perturbed first: at initialisation biases are zero and activations nearly
linear, which would hide errors.
"""

import collections
import copy
import re

import jax
import numpy as np
import pytest
from tiny_models import build, shapes

from t2x.interop import HFModel, export
from t2x.interop.rules import Table
from t2x.layers.arrays import named_leaves

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")
# Thread synchronisation takes most of the time of such small models.
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# Differences are relative to the largest logit.
TOLERANCE = 1e-5
# Tolerance of gradients, relative to the largest of a tensor; and the bound of zero gradients, relative to the
# largest of all.
GRADIENT_TOLERANCE = 1e-4
NOTHING = 1e-6
# Systems of the headers of configs that a family compares.
SYSTEMS = {
  'ALBERT': ('ALBERT', 'shared layers', 'factorised embedding'),
  'FSMT': ('Transformer',),
}
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
def table(add_row, request):
  """`table[family][column] = text` sets a cell of the table at the end of the run, and of `t2x systems`."""
  rows: dict[str, dict[str, str]] = collections.defaultdict(dict)
  yield rows
  for family, row in rows.items():
    for column, of in (('difference', 'outputs'), ('gradient', 'gradients')):
      if column in row:
        name = family.split(',')[0]
        for system in SYSTEMS.get(name, (name,)):
          value = system, 'transformers', of, float(row[column])
          request.node.user_properties.append(('difference', value))
  for family, row in rows.items():
    add_row(
      'parity with transformers',
      family,
      {title: row.get(column, '') for column, title in COLUMNS.items()},
    )


@pytest.fixture(autouse=True)
def seeded():
  """Initial parameters of the references are the same in each run, alone and among other tests."""
  torch.manual_seed(0)


@pytest.fixture
def perturbed():
  """`perturbed(model)`: adds N(0, std) to every trainable parameter of a transformers model, in place."""

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
  """`imported_from(folder)`: the t2x model of a folder."""

  def read(folder):
    source = HFModel(folder)
    return source.read(shapes(source.gin))

  return read


@pytest.fixture
def imported(tmp_path, imported_from):
  """`imported(model)`: the t2x model of a transformers model, through a saved folder."""

  def read(model):
    folder = tmp_path / f'theirs-{len(list(tmp_path.iterdir()))}'
    model.save_pretrained(folder)
    return imported_from(folder)

  return read


@pytest.fixture
def exported(tmp_path):
  """`exported(model, theirs)`: the t2x model, exported and loaded by transformers as the class of `theirs`.

  Other arguments are passed to `from_pretrained`.
  """

  def write(model, theirs, **more):
    folder = tmp_path / f'ours-{len(list(tmp_path.iterdir()))}'
    leaves = dict(named_leaves(model))
    fields = theirs.config.get_text_config().to_dict()
    # Whisper of transformers requires this number of frames.
    more_fields = ('_token_id', 'max_source_positions')
    tokens = {k: value for k, value in fields.items() if any(name in k for name in more_fields)}
    # A model of several families is exported as that of its folder.
    tokens['model_type'] = theirs.config.model_type
    family = export(model, build, folder, lambda name: np.asarray(leaves[name]), extra=tokens)
    assert family.model_type == theirs.config.model_type
    loaded, info = type(theirs).from_pretrained(folder, output_loading_info=True, **more)
    # transformers computes the ignored tensors, such as sinusoidal tables, itself.
    ignored = '|'.join([*family.ignored, *family.kept])
    assert not [name for name in info['missing_keys'] if not re.fullmatch(ignored, name)], info
    assert not info['unexpected_keys'], info
    return loaded.eval()

  return write


@pytest.fixture
def agree(table, perturbed, imported, exported):
  """`agree(family, make, theirs, ours, **more)`: import and export, perturbed and as initialised.

  `make()` returns the transformers model, `theirs(model)` and `ours(model)` the outputs to compare:
  arrays, or tuples of them, at valid positions. `more` are other arguments of `from_pretrained`.
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
  """`gradients(family, model, mine, theirs, ours, vanishing='', tolerance=...)`: compares gradients by tensor.

  `theirs(model)` and `ours(model)` return the loss of the same batch as a scalar. Tensors whose names
  match `vanishing` (a key bias has no gradient) must be zero up to rounding in both. `tolerance` is relative to the
  largest element of a tensor.
  """

  def check(family, model, mine, theirs, ours, vanishing='(?!)', tolerance=GRADIENT_TOLERANCE):
    model.zero_grad()
    theirs(model).backward()
    # Gradients are saved as parameters, because rules use the names in saved files.
    slopes = copy.deepcopy(model)
    with torch.no_grad():
      for slope, parameter in zip(slopes.parameters(), model.parameters(), strict=True):
        slope.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
    slopes.save_pretrained(tmp_path / 'gradients')
    source = HFModel(tmp_path / 'gradients')
    leaves = dict(named_leaves(jax.jit(jax.grad(ours))(mine)))
    rules = Table(source.family.rules, {name: leaf.shape for name, leaf in leaves.items()})
    scale = max(np.abs(source.tensors[name]).max() for name in rules.tensors)
    largest = 0.0
    for name, tensor in rules.tensors.items():
      parts = [np.asarray(leaves[one] if i is None else leaves[one][i]) for one, i in tensor.parts]
      wanted, got = source.tensors[name], tensor.layout.join(parts)
      if re.search(vanishing, name):
        assert max(np.abs(wanted).max(), np.abs(got).max()) < NOTHING * scale, name
        continue
      # An expert without tokens has no gradient.
      found = float(np.abs(got - wanted).max() / (np.abs(wanted).max() or 1.0))
      assert found < tolerance, f'gradient of {name}: {found}'
      largest = max(largest, found)
    table[family]['gradient'] = f'{largest:.0e}'

  return check


@pytest.fixture
def same_gradient(compared):
  """`same_gradient(system, reference, x, theirs, ours, rows=True, ...)`: equal outputs and gradients of x.

  Args:
    x: array [batch, length, ...] of NumPy.
    theirs: maps x as a tensor to the output.
    ours: the same for arrays of JAX.
    rows: mask [batch, length] of the tokens that are compared.
    slope: tolerance of gradients, relative to the largest.
    tolerances: of outputs.
  """

  def check(system, reference, x, theirs, ours, rows=True, slope=1e-5, **tolerances):
    leaf = torch.tensor(x, requires_grad=True)
    expected = theirs(leaf)
    weights = np.random.default_rng(5).normal(size=expected.shape).astype(np.float32)
    weights *= np.broadcast_to(rows, x.shape[:2])[..., None]
    (expected * torch.tensor(weights)).sum().backward()

    def weighted(x):
      y = ours(x)
      return (y * weights).sum(), y

    gradient, y = jax.jit(jax.grad(weighted, has_aux=True))(jax.numpy.asarray(x))
    rows = np.broadcast_to(rows, x.shape[:2])
    compared(system, reference, np.asarray(y)[rows], expected.detach().numpy()[rows], **tolerances)
    wanted = leaf.grad.numpy()
    atol = slope * np.abs(wanted).max()
    compared(system, reference, gradient, wanted, atol=atol, of='gradients')

  return check


@pytest.fixture
def equal(compared, perturbed):
  """`equal(system, reference, theirs, ours, arrays, run, apply)`: equal outputs and gradients of all parameters.

  Args:
    system, reference: see `compared`.
    theirs: module of PyTorch, whose parameters are perturbed.
    ours: module of t2x.
    arrays: `arrays(get)` returns the parameters by the names of ours; `get` reads a parameter, or its gradient.
    run: maps their module to an output, `apply` maps ours to one.
  """

  def check(system, reference, theirs, ours, arrays, run, apply):
    theirs = perturbed(theirs, std=0.1)
    expected = run(theirs)
    weights = np.random.default_rng(5).normal(size=expected.shape).astype(np.float32)
    values = arrays(lambda parameter: parameter.detach().numpy())
    (expected * torch.tensor(weights)).sum().backward()
    names = [name for name, _ in named_leaves(ours)]
    assert set(names) == values.keys()
    leaves = [
      jax.numpy.asarray(values[name]).reshape(leaf.shape) for name, leaf in named_leaves(ours)
    ]
    ours = jax.tree.unflatten(jax.tree.structure(ours), leaves)

    def weighted(ours):
      y = apply(ours)
      return (y * weights).sum(), y

    gradients, y = jax.jit(jax.grad(weighted, has_aux=True))(ours)
    compared(system, reference, y, expected.detach().numpy())
    wanted = arrays(lambda parameter: parameter.grad.numpy())
    largest = max(np.abs(w).max() for w in wanted.values())
    for name, leaf in named_leaves(gradients):
      want = wanted[name].reshape(leaf.shape)
      # Key biases have no gradient: what is compared are rounding errors.
      atol = max(1e-5 * np.abs(want).max(), 1e-7 * largest)
      compared(system, reference, leaf, want, atol=atol, of='gradients')

  return check
