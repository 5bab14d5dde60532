"""Text printed at the start and the end of a run: model, cost, devices, data; results."""

import dataclasses
import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from t2x.base.step import in_step
from t2x.base.text_table import text_table
from t2x.layers import AttentionInputs, Dense, Kernel
from t2x.layers.attention.kernels import Auto
from t2x.layers.constraints import Layout
from t2x.layers.dtypes import Dtypes
from t2x.models import Stack
from t2x.parallel import Mesh, mesh_text
from t2x.process.gpu_flags import environment_flags
from t2x.tasks import Task
from t2x.train.logs.flops import CONVENTION, Flops, with_kernels
from t2x.train.logs.writers import clock, format_value
from t2x.train.params import Blueprint, ParamInfo
from t2x.train.program import peak_flops, step_flops
from t2x.train.run import TrainingRun


def _by_part(module: nnx.Module) -> dict[str, list[ParamInfo]]:
  """Groups the parameters by top-level part."""
  parts: dict[str, list[ParamInfo]] = {}
  for name, info in Blueprint(module).infos.items():
    parts.setdefault(name.partition('.')[0], []).append(info)
  return parts


def model_table(module: nnx.Module) -> str:
  """Returns a table of the parameters by top-level part: shape, logical axes, kind, count.

  The last column is the dtype of parameters that are not cast to the compute dtype. Stacked layers share a row.
  """
  rows: list[tuple[str, ...]] = []
  parts = _by_part(module)
  for part, members in parts.items():
    rows.append((part, '', '', '', f'{_count(members):,}', ''))
    for info in members:
      name = info.name.partition('.')[2] or part
      shape, axes = ' x '.join(map(str, info.shape)), ' '.join(map(str, info.all_axes))
      dtype = Dtypes.parameters if info.keep_float32 else ''
      rows.append((f'  {name}', shape, axes, info.kind, f'{info.size:,}', dtype))
  total = sum(map(_count, parts.values()))
  rows = [('parameter', 'shape', 'axes', 'kind', 'count', 'kept in'), *rows]
  rows.append(('total', '', '', '', f'{total:,}', ''))
  return text_table(rows, '<<<<><')


@dataclasses.dataclass(frozen=True, eq=False)
class _Recorded(Kernel):
  """Adds the kernel, as chosen by `Auto` here, and the pattern of an attention to `lines` when it is traced."""

  kernel: Kernel
  lines: dict[str, None]

  needs_complete_rows = False

  def supports(self, inputs: AttentionInputs) -> str | None:
    return None

  def attend(self, inputs: AttentionInputs) -> jax.Array:
    text = str(self.kernel)
    if isinstance(self.kernel, Auto):
      text = '{} ({})'.format(*self.kernel.choose(inputs))
    self.lines[f'{text} under {inputs.pattern}'] = None
    return Dense()(inputs)


def attention_kernels(
  model: nnx.Module,
  task: Task,
  dtype: str = 'float32',
  layout: Layout | None = None,
  batch_size: int = 1,
) -> list[str]:
  """Returns a line for each distinct attention: its kernel (as chosen by `Auto` here) and pattern."""
  lines: dict[str, None] = {}
  blueprint = Blueprint(with_kernels(model, lambda kernel: _Recorded(kernel, lines)))
  (task, *_) = task.parts.values()

  def forward(params, batch):
    with in_step(layout=layout):
      return task.sums(blueprint.model(params, dtype), batch, None)

  jax.eval_shape(forward, blueprint.params(blueprint.shapes), task.spec(batch_size))
  return list(lines)


def start_screen(run: TrainingRun, rows: Sequence[Any], start: int, width: int) -> str:
  """Summarises a run before its first step: model, FLOPs, devices, attention kernels, data, steps, folder.

  Args:
    run: the run; its state need not exist yet.
    rows: rows of the train split.
    start: step of the checkpoint that the run starts from; 0 for a new run.
    width: width of the text in columns.
  """
  model, trainer, task = run.program.blueprint.shapes, run.trainer, run.task
  flops, peak = run.program.flops, peak_flops(run.program)
  epochs = trainer.num_steps * trainer.batch_size / max(len(rows), 1)
  kernels = attention_kernels(
    model, task, trainer.compute_dtype, run.program.layout, run.program.batch_size
  )
  lines = {
    'model': _model(model),
    'FLOPs': f'{_flops(flops)}, {_prefixed(step_flops(run.program))} per step'
    + ('' if peak is None else f'; MFU relative to {_prefixed(peak)}FLOP/s: {CONVENTION}'),
    'devices': f'{_devices()}, {trainer.compute_dtype}{_mesh(run.mesh, run.experiment.mesh)}',
    'attention': '; '.join(kernels) or 'none',
    'data': task.describe_rows(rows, trainer.num_steps, trainer.batch_size),
    'steps': f'{start:,} to {trainer.num_steps:,}{" (resumed)" if start else ""}, '
    f'batches of {trainer.batch_size:,} rows, {epochs:.3g} epochs',
    'evaluation': _evaluation(run),
    'programs': _compile_cache(),
    'run folder': str(run.folder),
  }
  if jax.default_backend() != 'cpu' and trainer.compute_dtype == 'float32':
    lines['precision'] = (
      'float32: slower products, twice the memory of activations, and no fused attention on GPUs; for bfloat16, add '
      't2x:precision/bf16.gin to the command'
    )
  if jax.default_backend() == 'gpu':
    lines['GPU flags'] = environment_flags() or 'none'
  return _table(lines, width)


def _compile_cache() -> str:
  folder = jax.config.values['jax_compilation_cache_dir']
  home = str(Path.home())
  return 'not cached' if folder is None else f'cached in {folder.replace(home, "~", 1)}'


def parameter_screen(run: TrainingRun) -> str:
  """Returns the table of parameters, the dtypes of the run, and the formula of its FLOPs."""
  model = run.program.blueprint.shapes
  flops = _flops(run.program.flops)
  return (
    f'{model_table(model)}\n\n'
    f'dtypes: {run.trainer.dtypes}\n'
    f'FLOPs: {flops}, 3 x the multiply-adds of the forward loss; {CONVENTION}\n'
  )


def end_screen(
  run: TrainingRun, step: int, metrics: Mapping[str, float], seconds: float, width: int
) -> str:
  """Summarises a finished run, with the next commands.

  Args:
    run: the run.
    step: its last step.
    metrics: metrics of the last evaluation.
    seconds: training time of the run, including that before restarts.
    width: width of the text in columns.
  """
  task, folder = run.task, shlex.quote(str(run.folder))
  lines = {'finished': f'{step:,} steps in {clock(seconds)}'}
  if step < run.trainer.num_steps:
    count = run.trainer.patience
    evaluations = f'{count} evaluation{"s" * (count != 1)}'
    lines['finished'] += (
      f' of at most {run.trainer.num_steps:,}: none of the last {evaluations} was better'
    )
  if best := _best(run):
    lines['best'] = f'{task.best_metric} {format_value(best[0])} at step {best[1]:,}'
  lines['last'] = '  '.join(f'{name} {format_value(value)}' for name, value in metrics.items())
  lines['run folder'] = str(run.folder)
  text = '\n' + _table(lines, width)
  # Not wrapped, so that the commands can be copied.
  commands = [f't2x eval {folder}']
  if task.answers_prompts:
    prompts = "--prompt 'TEXT'" if task.prompts == 'texts' else '--input FOLDER'
    commands.append(f't2x generate {folder} {prompts}')
  kinds = {*task.inputs.values()}
  if kinds == {'ids'}:
    commands.append(f"t2x look {folder} --prompt 'TEXT'")
  elif kinds == {'image'} and task.outputs in ('class logits', 'boxes'):
    commands.append(f't2x look {folder} --input 0')
  heads = ['next', *[''] * len(commands)]
  return text + '\n'.join(f'{head:12}{line}' for head, line in zip(heads, commands, strict=False))


def tracker_summary(
  run: TrainingRun, metrics: Mapping[str, float], seconds: float
) -> dict[str, float | str]:
  """Returns what trackers show of a finished run: best and last metrics, and seconds of training."""
  name = run.task.best_metric
  summary: dict[str, float | str] = {f'last/{key}': value for key, value in metrics.items()}
  if best := _best(run):
    summary |= {f'best/{name}': best[0], 'best/step': best[1]}
  return summary | {'seconds': round(seconds, 3)}


def _best(run: TrainingRun) -> tuple[float, int] | None:
  """Returns the best evaluated value of the task's metric and its step, the newest of equals."""
  name, sign = run.task.best_metric, 1 if run.task.best_mode == 'max' else -1
  text = (run.folder / 'metrics.jsonl').read_text(encoding='utf-8')
  lines = [line for line in map(json.loads, text.splitlines()) if line['split'] == 'eval']
  values = [(line[name], line['step']) for line in lines if line.get(name) is not None]
  return max(values, key=lambda pair: (sign * pair[0], pair[1]), default=None)


def sample_text(sample: Mapping[str, str], width: int) -> str:
  """Formats generated text, truncated to three lines per field; samples.jsonl has the full text."""
  lines = []
  for name, text in sample.items():
    head, size = f'  {name:8} ', width - 11
    quoted = repr(text)
    for at in range(0, len(quoted), size):
      if at == 3 * size:
        lines.append(f'{"":11}...')
        break
      lines.append((head if at == 0 else f'{"":11}') + quoted[at : at + size])
  return '\n'.join(lines)


def sample_markdown(sample: Mapping[str, str]) -> str:
  """Formats generated text as Markdown, in a code block per field."""
  blocks = [
    f'**{name}**\n\n' + textwrap.indent(text, '    ', lambda _: True)
    for name, text in sample.items()
  ]
  return '\n\n'.join(blocks)


def _table(lines: Mapping[str, str], width: int) -> str:
  """Formats names in a column, each followed by its wrapped text."""
  rows = []
  for name, text in lines.items():
    head, indent = f'{name:12}', ' ' * 12
    for line in text.splitlines():
      rows += textwrap.wrap(
        line, width, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
      )
      head = indent
  return '\n'.join(rows) + '\n'


def _flops(flops: Flops) -> str:
  """Formats the FLOPs per token, and those with full attention if they differ."""
  full = f' (full attention: {_prefixed(flops.full)})'
  return f'{_prefixed(flops.visible)} per token' + ('' if flops.visible == flops.full else full)


def _prefixed(number: float) -> str:
  """Formats a number with three digits and a unit prefix: 4.33e9 -> '4.33 G'."""
  for power, prefix in ((18, 'E'), (15, 'P'), (12, 'T'), (9, 'G'), (6, 'M'), (3, 'k')):
    if number >= 10**power:
      return f'{number / 10**power:.3g} {prefix}'
  return f'{number:.3g}'


def _model(model: nnx.Module) -> str:
  """Returns one line for the model and one per top-level part: parameters, layers, widths."""
  parts = _by_part(model)
  layers: dict[str, int] = {}
  for path, module in nnx.iter_modules(model):
    if isinstance(module, Stack) and path:
      layers[str(path[0])] = layers.get(str(path[0]), 0) + module.num_layers
  lines = []
  for part, members in parts.items():
    sizes = [f'{layers[part]} layers'] if part in layers else []
    sizes += _widths(members)
    lines.append(f'{part} {_count(members):,}' + (f': {", ".join(sizes)}' if sizes else ''))
  total = sum(map(_count, parts.values()))
  return '\n'.join([f'{type(model).__name__}, {total:,} parameters', *lines])


def _count(members: Sequence[ParamInfo]) -> int:
  return sum(info.size for info in members)


def _widths(members: Sequence[ParamInfo]) -> list[str]:
  """Returns the sizes of the logical axes; kv_heads only if it differs from heads."""
  sizes: dict[str, list[int]] = {}
  for info in members:
    for axis, size in zip(info.all_axes, info.shape, strict=True):
      if axis is not None and axis != 'layers' and size not in sizes.setdefault(axis, []):
        sizes[axis].append(size)
  if sizes.get('kv_heads') == sizes.get('heads'):
    sizes.pop('kv_heads', None)
  texts = {axis: '/'.join(map(str, sorted(numbers))) for axis, numbers in sizes.items()}
  if 'heads' in texts and 'head_dim' in texts:
    texts['heads'] += f' x {texts.pop("head_dim")}'
  return [f'{axis} {text}' for axis, text in texts.items()]


def _devices() -> str:
  devices = jax.devices()
  platform, kind = devices[0].platform, devices[0].device_kind
  named = platform if platform == kind else f'{platform} ({kind})'
  text = f'{len(devices)} x {named}, jax {jax.__version__}'
  processes = jax.process_count()
  return text if processes == 1 else f'{text}, {processes} processes'


def _mesh(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh, settings: Mesh) -> str:
  """Describes the mesh if there are several devices."""
  sizes, split = mesh_text(mesh, settings.rules)
  if not sizes:
    return '' if jax.device_count() == 1 else '; 1 device used'
  return f'; mesh {sizes}, {split or "parameters replicated"}'


def _evaluation(run: TrainingRun) -> str:
  trainer, task = run.trainer, run.task
  text = f'{task.eval_split} split'
  if 0 < trainer.eval_every < trainer.num_steps:
    limit = '' if trainer.eval_batches is None else f' ({trainer.eval_batches:,} batches)'
    text += f' every {trainer.eval_every:,} steps{limit} and'
  text += ' at the end'
  if trainer.ema_decay is not None:
    text += f', EMA weights (decay {trainer.ema_decay:g})'
  return f'{text}; evaluation and generation in {trainer.compute_dtype}'
