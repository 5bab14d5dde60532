"""What is told before a run starts: the model, its cost, the devices, the data."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t2x.layers import Pattern, RowLayout, Tokens
from t2x.layers.kernels import Auto
from t2x.parallel import Mesh, as_tuple
from t2x.tasks import Task
from t2x.train.fit import row_lengths
from t2x.train.flops import flops_per_token
from t2x.train.run import Run

__all__ = ['attention_kernels', 'model_table', 'start_screen']


Parameter = tuple[tuple[str, ...], tuple[str | None, ...], tuple[int, ...]]


def parameters(module: nnx.Module) -> Iterator[Parameter]:
  """(path, logical axes, shape) of each; stacked layers are named in the axes."""
  flat, _ = jax.tree_util.tree_flatten_with_path(
    module, is_leaf=lambda x: isinstance(x, nnx.Variable)
  )
  for path, variable in flat:
    for leaf in jax.tree.leaves(variable):
      axes = tuple(variable.get_metadata().get('axes') or (None,) * leaf.ndim)
      axes = ('layers',) * (leaf.ndim - len(axes)) + axes
      yield tuple(jax.tree_util.keystr((key,), simple=True) for key in path), axes, leaf.shape


def model_table(module: nnx.Module) -> str:
  """Each parameter with shape, logical axes and count, by top-level part. Stacked layers are one."""
  rows: list[tuple[str, str, str, str]] = []
  parts: dict[str, list[Parameter]] = {}
  for parameter in parameters(module):
    parts.setdefault(parameter[0][0], []).append(parameter)
  for part, members in parts.items():
    rows.append((part, '', '', f'{sum(math.prod(shape) for *_, shape in members):,}'))
    for path, axes, shape in members:
      name = '.'.join(path[1:]) or part
      told = ' x '.join(map(str, shape))
      rows.append((f'  {name}', told, ' '.join(map(str, axes)), f'{math.prod(shape):,}'))
  total = sum(math.prod(shape) for *_, shape in parameters(module))
  rows = [('parameter', 'shape', 'axes', 'count'), *rows, ('total', '', '', f'{total:,}')]
  widths = [max(len(row[column]) for row in rows) for column in range(4)]
  return '\n'.join(
    f'{name:{widths[0]}}  {shape:{widths[1]}}  {axes:{widths[2]}}  {count:>{widths[3]}}'
    for name, shape, axes, count in rows
  )


def attention_kernels(model: nnx.Module, task: Task, dtype: str = 'float32') -> list[str]:
  """The kernel of every kind of self-attention, and what `Auto` makes of it here."""
  lengths, told = row_lengths(task, model), []
  body: Any
  for path, body in nnx.iter_modules(model):
    if not hasattr(body, 'stack') or not hasattr(body, 'pattern'):
      continue
    length = lengths.get(str(path[0]) if path else '', list(lengths.values())[-1])
    for block in body.stack.blocks:
      mixer = getattr(block, 'mixer', None)
      kernel = getattr(mixer, 'kernel', None)
      if kernel is None or isinstance(kernel, nnx.Variable):
        continue
      pattern = body.pattern & block.pattern
      line = str(kernel)
      if isinstance(kernel, Auto):
        bias = body.encoding if getattr(body.encoding, 'has_bias', False) else None
        line = _chosen(kernel, mixer, pattern, bias, length, dtype)
      line += f' under {pattern}'
      if line not in told:
        told.append(line)
  return told


def _chosen(kernel: Auto, mixer: Any, pattern: Pattern, bias: Any, length: int, dtype: str) -> str:
  """What Auto picks for rows of `length` packed tokens, and why."""
  chosen: list[str] = []

  def ask():
    q = jnp.zeros((1, length, mixer.num_heads, mixer.head_dim), dtype)
    k = jnp.zeros((1, length, mixer.num_kv_heads, mixer.head_dim), dtype)
    whole = jnp.ones((1, length), jnp.int32)
    tokens = Tokens(whole, whole, layout=RowLayout.PACKED)
    one, why = kernel.choose(
      q, k, k, pattern=pattern, q_tokens=tokens, k_tokens=tokens, bias=bias, dropout_rate=0.0
    )
    chosen.append(f'{one} ({why})')

  jax.eval_shape(ask)
  return chosen[0]


def start_screen(run: Run, rows: Sequence[Any], start: int, notes: Sequence[str] = ()) -> str:
  """One screen: model, cost, devices, mesh, attention kernel, data, run folder.

  Args:
    run: the run; its state need not exist yet.
    rows: the train split's rows.
    start: the step it starts from.
    notes: lines about the process.
  """
  model, trainer, task = run.abstract.model, run.trainer, run.task
  lengths = row_lengths(task, model)
  flops = flops_per_token(task, model)
  tokens = trainer.batch_size * sum(lengths.values())
  lines = {
    'FLOPs per token': f'{flops}; {flops.full * tokens:.3g} per step',
    'devices': _devices(),
    'mesh': _mesh(run.mesh, run.experiment.mesh),
    'attention': '; '.join(attention_kernels(model, task, trainer.compute_dtype)) or 'none',
    'compute': trainer.compute_dtype,
    'data': _data(task, rows, trainer),
    'steps': f'{start} to {trainer.num_steps}' + (' (resumed)' if start else ''),
    'run folder': str(run.folder),
  }
  width = max(map(len, lines))
  told = [f'{name:{width}}  {value}' for name, value in lines.items()]
  told += [f'{"process":{width}}  {note}' for note in notes]
  return '\n'.join([model_table(model), '', *told]) + '\n'


def _devices() -> str:
  devices = jax.devices()
  told = f'{len(devices)} x {devices[0].platform} ({devices[0].device_kind}), jax {jax.__version__}'
  processes = jax.process_count()
  return told if processes == 1 else f'{told}, {processes} processes'


def _mesh(mesh: jax.sharding.Mesh, settings: Mesh) -> str:
  sizes = [f'{axis} {size}' for axis, size in mesh.shape.items() if size > 1]
  if not sizes:
    return 'one device'
  split = {
    name: axes
    for name, axes in settings.rules.items()
    if math.prod(mesh.shape[axis] for axis in as_tuple(axes)) > 1
  }
  told = ', '.join(f'{name} over {axes}' for name, axes in split.items())
  return ' x '.join(sizes) + (f'; {told}' if told else '; parameters replicated')


def _data(task: Task, rows: Sequence[Any], trainer: Any) -> str:
  info = getattr(rows, 'info', None) or {}
  known = [f'{info[name]:,} {name}' for name in ('examples', 'tokens') if name in info]
  epochs = trainer.num_steps * trainer.batch_size / max(len(rows), 1)
  told = ', '.join([*known, f'{len(rows):,} rows', f'batches of {trainer.batch_size}'])
  source = textwrap.shorten(str(task.source), 100, placeholder=' ...')
  return f'{source} {task.train_split}: {told}, {epochs:.3g} epochs'
