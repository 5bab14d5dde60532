"""A model of theirs: a Hugging Face folder, and its arrays as ours."""

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import SingleDeviceSharding

from t2x.arrays import Lazy, named_leaves
from t2x.errors import UserError, in_a_line
from t2x.external_files import printed, read_json
from t2x.interop.families import family_of
from t2x.interop.family import Size
from t2x.interop.rules import Table
from t2x.interop.safetensors import read_tensors


class Source:
  """What a folder with config.json and safetensors holds; nothing is read but names.

  Args:
    path: the folder, or one .safetensors file in it.

  Attributes:
    folder: the folder.
    config: its config.json.
    family: the family that config.json names.
    fields: of config.json, checked, over the family's defaults.
    tensors: their name -> view of the file.
    gin: our config of the model.

  Raises:
    UserError: no such folder, an architecture or field that is not known, no safetensors.
  """

  def __init__(self, path: Path | str):
    path = Path(path).expanduser()
    if not path.exists():
      raise UserError(f'there is no {path}')
    self.folder = path if path.is_dir() else path.parent
    self.config = self.folder / 'config.json'
    if not self.config.exists():
      raise UserError(f'there is no {self.config}, which says what model this is')
    given = read_json(self.config)
    self.family = family_of(given, self.config)
    self.fields = self.family.read(given, str(self.config))
    self.gin = self.family.gin(self.fields)
    self.tensors = self._named(read_tensors(path))
    self._check_sizes(given)

  def _check_sizes(self, given: Mapping[str, Any]) -> None:
    """Refuses sizes that no tensor can have, before a model of these sizes is looked at."""
    shapes = [tensor.shape for tensor in self.tensors.values() if tensor.size]
    largest = max((size for shape in shapes for size in shape), default=0)
    for name, field in self.family.declared.items():
      if isinstance(field, Size) and name in given and (self.fields[name] or 0) > largest:
        raise UserError(
          f'{self.config}: {name} = {self.fields[name]} is larger than any dimension of the tensors '
          f'in {self.folder}, at most {largest}'
        )

  def shapes(self, build: Callable[..., nnx.Module]) -> nnx.Module:
    """The shapes of our model.

    Args:
      build: what a config of `gin` builds.

    Raises:
      UserError: the fields of config.json fit no model together.
    """
    try:
      return jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
    except UserError as error:
      raise UserError(f'{self.config}: {error}') from error
    except (ArithmeticError, TypeError, ValueError) as error:
      raise UserError(f'{self.config} describes no model: {in_a_line(error)}') from error

  def _named(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In the names of a model with heads, as they are spelt today."""
    prefix = self.family.prefix
    bare = prefix and not any(name.startswith(prefix) for name in tensors)
    named = {}
    for name, value in tensors.items():
      for pattern, replacement in self.family.renamed.items():
        name = re.sub(pattern, replacement, name)
      name = prefix + name if bare else name
      if name in named:
        raise UserError(f'{self.folder} holds two tensors that mean {printed(name)}')
      named[name] = value
    return named

  def arrays(self, model: nnx.Module) -> tuple[dict[str, Lazy], list[str]]:
    """Our parameters by name, of which parts are read when they are asked for.

    Args:
      model: ours, or its shapes.

    Returns:
      The arrays, and names of theirs that belong to parts which `model` lacks.

    Raises:
      UserError: tensors that are missing, unknown or of another shape.
    """
    leaves = dict(named_leaves(model))
    table = Table(self.family.rules, {name: tuple(leaf.shape) for name, leaf in leaves.items()})
    shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
    left = table.check(shapes, self.family.ignored, str(self.folder))
    self._check_types(table)

    def lazy(name: str, leaf: Any) -> Lazy:
      num_stacked = len(next(iter(table.pieces[name])))

      def read(index):
        def piece(*numbers):
          view = table.view(name, numbers, self.tensors)
          return np.asarray(view[index[num_stacked:]], leaf.dtype)

        if not num_stacked:
          return piece()
        numbers = [
          range(size)[some] for size, some in zip(leaf.shape, index[:num_stacked], strict=False)
        ]
        pieces = np.stack([piece(*one) for one in itertools.product(*numbers)])
        return pieces.reshape(*map(len, numbers), *pieces.shape[1:])

      return Lazy(tuple(leaf.shape), leaf.dtype, read)

    return {name: lazy(name, leaf) for name, leaf in leaves.items()}, left

  def _check_types(self, table: Table) -> None:
    """Refuses numbers that stand for others by a scale which is not read (quantised weights)."""
    for name in table.tensors:
      if not jnp.issubdtype(dtype := self.tensors[name].dtype, jnp.floating):
        raise UserError(f'{self.folder}: {name} is of type {dtype}, and parameters are floats')

  def read(self, model: nnx.Module) -> nnx.Module:
    """`model` (its shapes are enough) with their parameters, in the shardings of its own.

    Leaf by leaf; a device is given its part alone, and what other processes hold is not read.
    """
    arrays, _ = self.arrays(model)
    here = SingleDeviceSharding(jax.local_devices()[0])
    leaves = [
      lazy.on(getattr(leaf, 'sharding', None) or here)
      for lazy, leaf in zip(arrays.values(), jax.tree.leaves(model), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(model), leaves)
