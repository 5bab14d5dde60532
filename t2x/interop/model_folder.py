"""Import of Hugging Face model folders as t2x parameters."""

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

from t2x.base.errors import UserError, error_line
from t2x.base.external_files import printed, read_json
from t2x.interop.families import family_of
from t2x.interop.family import Size
from t2x.interop.rules import Table
from t2x.interop.safetensors import read_tensors
from t2x.layers.arrays import Lazy, named_leaves

__all__ = ['HFModel']


class HFModel:
  """A Hugging Face folder with config.json and safetensors; reads no weights when it is built.

  Args:
    path: the folder, or a .safetensors file in it.

  Attributes:
    folder: the folder.
    config: path of config.json.
    family: the family named in config.json.
    fields: the validated fields of config.json, with the family's defaults.
    tensors: name -> view of the memory-mapped file.
    gin: the t2x config of the model.

  Raises:
    UserError: the folder or its safetensors are missing; an architecture or field is not supported.
  """

  def __init__(self, path: Path | str):
    path = Path(path).expanduser()
    if not path.exists():
      raise UserError(f'{path} does not exist')
    self.folder = path if path.is_dir() else path.parent
    self.config = self.folder / 'config.json'
    if not self.config.exists():
      raise UserError(
        f'{self.config} does not exist: the folder must contain the config.json of the model'
      )
    config = read_json(self.config)
    self.family = family_of(config, self.config)
    self.fields = self.family.read(config, str(self.config))
    self.gin = self.family.gin(self.fields)
    self.tensors = self._normalize_names(read_tensors(path))
    self._check_sizes(self.family.flat(config, str(self.config)))

  def _check_sizes(self, config: Mapping[str, Any]) -> None:
    """Raises UserError for a size above every tensor dimension, before shapes of this size are computed."""
    shapes = [tensor.shape for tensor in self.tensors.values() if tensor.size]
    largest = max((size for shape in shapes for size in shape), default=0)
    for name, field in self.family.declared.items():
      if isinstance(field, Size) and name in config and (self.fields[name] or 0) > largest:
        raise UserError(
          f'{self.config}: {name} = {self.fields[name]} is larger than any dimension of the tensors '
          f'in {self.folder}: the largest is {largest}'
        )

  def shapes(self, build: Callable[..., nnx.Module]) -> nnx.Module:
    """Returns the t2x model with shapes in place of arrays.

    Args:
      build: the builder of the model in `gin`.

    Raises:
      UserError: the fields of config.json are inconsistent.
    """
    try:
      return jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
    except UserError as error:
      raise UserError(f'{self.config}: {error}') from error
    except (ArithmeticError, TypeError, ValueError) as error:
      raise UserError(f'{self.config} describes an invalid model: {error_line(error)}') from error

  def _normalize_names(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames tensors of old files and of bare models to the current names of a model with a head."""
    prefix = self.family.prefix
    bare = prefix and not any(name.startswith(prefix) for name in tensors)
    normalized = {}
    for name, value in tensors.items():
      for pattern, replacement in self.family.renamed.items():
        name = re.sub(pattern, replacement, name)
      name = prefix + name if bare else name
      if name in normalized:
        raise UserError(f'{self.folder} contains two tensors for {printed(name)}: remove one')
      normalized[name] = value
    return normalized

  def arrays(self, model: nnx.Module) -> tuple[dict[str, Lazy], list[str]]:
    """Returns the parameters of a t2x model as lazily read arrays.

    Args:
      model: the t2x model, or its shapes.

    Returns:
      Parameter name -> array, and the names of tensors that belong to modules which `model` lacks.

    Raises:
      UserError: tensors are missing, unknown or of another shape.
    """
    leaves = dict(named_leaves(model))
    table = Table(self.family.rules, {name: tuple(leaf.shape) for name, leaf in leaves.items()})
    shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
    ignored = [*self.family.ignored, *self.family.kept]
    unused = table.check(shapes, ignored, str(self.folder))
    self._check_types(table)

    def lazy(name: str, leaf: jax.ShapeDtypeStruct) -> Lazy:
      num_stacked = len(next(iter(table.pieces[name])))

      def read(index):
        def piece(*numbers):
          view = table.view(name, numbers, self.tensors)
          return np.asarray(view[index[num_stacked:]], leaf.dtype)

        if not num_stacked:
          return piece()
        numbers = [
          range(size)[part] for size, part in zip(leaf.shape, index[:num_stacked], strict=False)
        ]
        pieces = np.stack([piece(*indices) for indices in itertools.product(*numbers)])
        return pieces.reshape(*map(len, numbers), *pieces.shape[1:])

      return Lazy(tuple(leaf.shape), leaf.dtype, read)

    return {name: lazy(name, leaf) for name, leaf in leaves.items()}, unused

  @property
  def kept(self) -> dict[str, np.ndarray]:
    """The tensors without effect in t2x that an export of the model has again."""
    return self.family.kept_of(self.tensors)

  def _check_types(self, table: Table) -> None:
    """Raises UserError for quantised weights."""
    for name in table.tensors:
      if not jnp.issubdtype(dtype := self.tensors[name].dtype, jnp.floating):
        raise UserError(
          f'{self.folder}: {name} is of type {dtype}: it must be floating point, not quantised'
        )

  def read(self, model: nnx.Module) -> nnx.Module:
    """Returns `model` (or its shapes) with the parameters of the folder, in the shardings of `model`.

    Reads one leaf at a time, and of each leaf only the shards of the devices of this process.
    """
    arrays, _ = self.arrays(model)
    default = SingleDeviceSharding(jax.local_devices()[0])
    leaves = [
      lazy.on(getattr(leaf, 'sharding', None) or default)
      for lazy, leaf in zip(arrays.values(), jax.tree.leaves(model), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(model), leaves)
