"""Importance and removal of attention heads (Michel et al. 2019, https://arxiv.org/abs/1905.10650).

The output of head h is multiplied by a factor xi_h, which is 1 for a head and 0 for a removed one. As a head
acts only through its part of the output projection, the factor is applied to that part of the kernel: any
attention whose parameters name their heads is supported, and no layer computes the factors.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers.arrays import name_of
from t2x.models import Stack
from t2x.parallel import Activations
from t2x.tasks.output import TaskOutput
from t2x.train.params import Blueprint, ParamInfo, Params

# One group of heads: name of the sublayer, row of its stacked parameters, index of the group.
Place = tuple[str, int, int]
# Name of a sublayer -> an array over its rows and groups of heads.
ByHead = Mapping[str, Any]
Sums = Callable[..., TaskOutput]

_STACKED = re.compile(r'(.*)\.blocks\.(\d+)\.(.*)')
_OUT = '.out.kernel'


@dataclasses.dataclass(frozen=True)
class AttentionHeads:
  """The heads of an attention sublayer, in all layers whose parameters are stacked with it.

  Query heads that share keys and values are a group, which is removed as a whole.

  Attributes:
    name: path of the sublayer, such as `body.stack.blocks.0.mixer`.
    layers: the layer of each row of the stacked parameters.
    num_groups: groups of heads in each layer; without grouped queries, the number of heads.
    group_size: query heads in a group.
  """

  name: str
  layers: tuple[int, ...]
  num_groups: int
  group_size: int

  @property
  def shape(self) -> tuple[int, int]:
    """Rows and groups."""
    return len(self.layers), self.num_groups


def find_heads(infos: Mapping[str, ParamInfo]) -> list[AttentionHeads]:
  """Returns the attention sublayers of a model, in the order of its parameters.

  Args:
    infos: metadata of all parameters by name.

  Raises:
    UserError: there are none, layers share their parameters, or other parts have parameters of single heads.
  """
  sublayers = []
  for name, info in infos.items():
    if name.endswith(_OUT) and info.axes[:1] == ('heads',) and _STACKED.fullmatch(name):
      sublayers.append(_heads(name.removesuffix(_OUT), info, infos))
  if not sublayers:
    raise UserError('the model has no attention heads in the blocks of a stack: nothing to prune')
  prefixes = tuple(f'{sublayer.name}.' for sublayer in sublayers)
  for name, info in infos.items():
    if {'heads', 'kv_heads'} & {*info.stacked, *info.axes} and not name.startswith(prefixes):
      raise UserError(
        f'{name} has values for each head, but is outside of the attention sublayers: heads of this model '
        'cannot be pruned'
      )
  return sublayers


def _heads(name: str, out: ParamInfo, infos: Mapping[str, ParamInfo]) -> AttentionHeads:
  layers = out.layers or ()
  if any(len(users) != 1 for users in layers):
    raise UserError(
      f'{name}: layers share its parameters (Stack.num_groups), so that a head cannot be removed from one '
      'layer: heads of this model cannot be pruned'
    )
  queries = infos.get(f'{name}.q.kernel')
  sizes_differ = queries is not None and queries.shape[-2:] != out.shape[1:3]
  if sizes_differ or any(other.startswith(f'{name}.key_values.') for other in infos):
    raise UserError(
      f'{name} has other keys and values than num_heads and head_dim describe (value_dim, key_values or head_outputs): '
      'heads of this model cannot be pruned'
    )
  num_heads = out.shape[1]
  values = infos.get(f'{name}.v.kernel', out)
  sizes = dict(zip(values.axes, values.shape[1:], strict=True))
  num_groups = sizes.get('kv_heads', num_heads)
  return AttentionHeads(name, tuple(u for (u,) in layers), num_groups, num_heads // num_groups)


def scaled(params: Params, heads: Sequence[AttentionHeads], factors: ByHead) -> Params:
  """Returns the parameters with the output of each head multiplied by the factor of its group.

  Args:
    params: all parameters.
    heads: the attention sublayers.
    factors: [rows, groups] by name of the sublayer; 0 removes the group.
  """
  new = dict(params)
  for sublayer in heads:
    kernel = params[sublayer.name + _OUT]
    by_head = jnp.repeat(
      jnp.asarray(factors[sublayer.name], kernel.dtype), sublayer.group_size, axis=1
    )
    new[sublayer.name + _OUT] = kernel * by_head[:, :, None, None]
  return new


def row_losses(
  sums: Sums,
  blueprint: Blueprint,
  params: Params,
  batch: Mapping[str, Array],
  layout: Activations | None = None,
) -> tuple[Float[Array, ' rows'], Float[Array, ' rows']]:
  """Returns the mean loss of each row of a batch, without dropout, and the weight of its targets.

  Args:
    sums: `Task.sums`.
    blueprint: the model.
    params: all parameters.
    batch: the rows, one of which is computed at a time.
    layout: sharding of the activations; None for one device.
  """

  def loss(row):
    with in_step(layout=layout and layout.whole_rows(batch=False)):
      total, weight = sums(blueprint.model(params), row, None).metrics['loss']
    return total / jnp.where(weight == 0, 1.0, weight), weight

  return jax.vmap(loss)({name: array[:, None] for name, array in batch.items()})


def importance(
  sums: Sums,
  blueprint: Blueprint,
  params: Params,
  batches: Iterable[Mapping[str, Array]],
  heads: Sequence[AttentionHeads],
  layout: Activations | None = None,
) -> tuple[dict[str, Float[np.ndarray, 'rows groups']], int]:
  """Computes the importance of each head, the mean over rows of |dL / dxi_h|, where L is the mean loss of a row.

  It is divided by its l2 norm over the heads of the same sublayer and layer (section 4.1 of the paper).

  Args:
    sums: `Task.sums`.
    blueprint: the model.
    params: all parameters; gradients are computed in their dtype.
    batches: batches of rows; rows without targets are ignored.
    heads: the attention sublayers.
    layout: sharding of the activations; None for one device.

  Returns:
    The importance of each group, [rows, groups] by name of the sublayer, and the number of rows.

  Raises:
    UserError: no row has a target.
  """

  def loss(factors, params, row):
    (mean,), (weight,) = row_losses(sums, blueprint, scaled(params, heads, factors), row, layout)
    return mean, weight

  @jax.jit
  def step(params, batch):
    ones = {sublayer.name: jnp.ones(sublayer.shape) for sublayer in heads}
    rows = {name: array[:, None] for name, array in batch.items()}
    by_row = jax.vmap(jax.grad(loss, has_aux=True), (None, None, 0))
    gradients, weights = by_row(ones, params, rows)
    return jax.tree.map(lambda g: jnp.abs(g).sum(0), gradients), (weights > 0).sum()

  totals = {sublayer.name: np.zeros(sublayer.shape) for sublayer in heads}
  count = 0
  for batch in batches:
    gradients, size = jax.device_get(step(params, batch))
    count += int(size)
    for name, total in totals.items():
      total += gradients[name]
  if not count:
    raise UserError('no row of the data has a target: the importance of heads is undefined')
  return {name: _normalised(total / count) for name, total in totals.items()}, count


def _normalised(raw: Float[np.ndarray, 'rows groups']) -> Float[np.ndarray, 'rows groups']:
  norm = np.sqrt((raw**2).sum(axis=1, keepdims=True))
  return raw / np.where(norm == 0, 1.0, norm)


def removal_order(scores: ByHead) -> list[Place]:
  """Returns the groups that may be removed, least important first.

  The most important group of each layer and sublayer is not among them: every layer keeps one.

  Args:
    scores: importance, [rows, groups] by name of the sublayer.
  """
  places = []
  for name, array in scores.items():
    for row, line in enumerate(np.asarray(array)):
      last = int(line.argmax())
      places += [(float(v), (name, row, i)) for i, v in enumerate(line) if i != last]
  return [place for _, place in sorted(places)]


def remaining(
  heads: Sequence[AttentionHeads], removed: Iterable[Place]
) -> dict[str, Bool[np.ndarray, 'rows groups']]:
  """Returns which groups remain after the removal of some, [rows, groups] by name of the sublayer."""
  masks = {sublayer.name: np.ones(sublayer.shape, bool) for sublayer in heads}
  for name, row, group in removed:
    masks[name][row, group] = False
  return masks


@dataclasses.dataclass(frozen=True)
class Cut:
  """A model without some of its heads.

  Stacked layers have equal shapes. Layers with different numbers of heads therefore become different blocks
  of a longer repeating group.

  Attributes:
    stacks: path of each stack -> number of blocks in its new repeating group.
    counts: path of each stack -> for each layer, sublayer -> number of groups that remain.
    params: the parameters of the smaller model by their new names.
  """

  stacks: Mapping[str, int]
  counts: Mapping[str, Sequence[Mapping[str, int]]]
  params: Params


def cut(
  blueprint: Blueprint, params: Params, heads: Sequence[AttentionHeads], masks: ByHead
) -> Cut:
  """Removes heads from the parameters of a model.

  Args:
    blueprint: the model.
    params: all its parameters.
    heads: the attention sublayers.
    masks: which groups remain, [rows, groups] by name of the sublayer.
  """
  counts = _counts(blueprint, heads, masks)
  sizes = _stack_sizes(blueprint.shapes)
  periods = {name: _period(counts[name], sizes[name][:2]) for name in counts}
  rows: dict[str, dict[int, Array]] = {}
  new: Params = {}
  for name, info in blueprint.infos.items():
    match = _STACKED.fullmatch(name)
    if match is None or match[1] not in periods:
      new[name] = params[name]
      continue
    own = [sublayer for sublayer in heads if name.startswith(f'{sublayer.name}.')]
    for row, (number,) in enumerate(info.layers or ()):
      layer, array = number - sizes[match[1]][2], params[name][row]
      for sublayer in own:
        array = _without(array, info, sublayer, masks[sublayer.name][row])
      block = f'{match[1]}.blocks.{layer % periods[match[1]]}.{match[3]}'
      rows.setdefault(block, {})[layer] = array
  for name, layers in rows.items():
    new[name] = jnp.stack([layers[layer] for layer in sorted(layers)])
  return Cut(periods, counts, new)


def _without(array: Any, info: ParamInfo, sublayer: AttentionHeads, mask: np.ndarray) -> Any:
  """Returns one layer of a parameter with the values of the groups that remain."""
  for axis, name in enumerate((*info.stacked[1:], *info.axes)):
    if name in ('heads', 'kv_heads'):
      copies = sublayer.group_size if name == 'heads' else 1
      array = jnp.compress(np.repeat(mask, copies), array, axis=axis)
  return array


def _stack_sizes(model: nnx.Module) -> dict[str, tuple[int, int, int]]:
  """Returns the number of layers, of blocks in a repeat, and of layers before each stack, by its path."""
  return {
    name_of(path): (part.num_layers, len(part.blocks), part.first_layer)
    for path, part in nnx.iter_modules(model)
    if isinstance(part, Stack)
  }


def _counts(
  blueprint: Blueprint, heads: Sequence[AttentionHeads], masks: ByHead
) -> dict[str, list[dict[str, int]]]:
  sizes, counts = _stack_sizes(blueprint.shapes), dict[str, list[dict[str, int]]]()
  for sublayer in heads:
    stack, _, part = _split(sublayer.name)
    num_layers, _, first = sizes[stack]
    layers = counts.setdefault(stack, [{} for _ in range(num_layers)])
    for layer, mask in zip(sublayer.layers, masks[sublayer.name], strict=True):
      layers[layer - first][part] = int(mask.sum())
  return counts


def _period(counts: Sequence[Mapping[str, int]], size: tuple[int, int]) -> int:
  """Returns the length of the shortest repeating group, a multiple of the current number of blocks."""
  num_layers, num_blocks = size
  return next(
    period
    for period in range(num_blocks, num_layers + 1, num_blocks)
    if not num_layers % period and all(counts[i] == counts[i % period] for i in range(num_layers))
  )


def _split(name: str) -> tuple[str, str, str]:
  """Splits `body.stack.blocks.0.mixer` into the stack, the block and the sublayer."""
  match = _STACKED.fullmatch(name)
  assert match is not None  # `find_heads` returns no other names.
  return match[1], match[2], match[3]
