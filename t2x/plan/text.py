"""A plan as text and as JSON. Each number is traced, compiled or assumed."""

import dataclasses
from typing import Any

from t2x.base.step import in_step
from t2x.base.text_table import text_table
from t2x.parallel.report import format_bytes
from t2x.plan.cost import collective_seconds
from t2x.plan.hardware import LINK_EFFICIENCY, USABLE_MEMORY, Device
from t2x.plan.plan import Plan, Planned, communication
from t2x.plan.planner import FIT_MARGIN, SMALLER, Variant, no_time, rows_per_device
from t2x.train.logs.flops import CONVENTION
from t2x.train.logs.summary import attention_kernels
from t2x.train.program import step_flops, step_tokens

__all__ = ['plan_json', 'report']


def report(plan: Plan) -> str:
  """Returns the plan as text."""
  device = plan.request.device
  parts = [_title(plan.base.variant), _memory(plan.base, device), _operations(plan.base, device)]
  if device is not None:
    parts.append(_time(plan.base))
  if plan.changes:
    parts.append(
      'changes that were tried because the step does not fit:\n' + _variants(plan.changes)
    )
  if plan.best:
    tried = f'the best of {plan.num_tried} variants tried, by the time of a step:\n'
    parts.append(tried + _variants(plan.best))
  parts.append('assumptions:\n' + '\n'.join(f'- {line}' for line in assumptions(plan)))
  return '\n\n'.join(parts)


def _title(variant: Variant) -> str:
  program, trainer = variant.program, variant.program.trainer
  sizes = [f'{axis} {size}' for axis, size in variant.mesh_shape.items() if size > 1]
  devices = f'{program.mesh.size} devices: {" x ".join(sizes)}' if sizes else '1 device'
  lengths = ' + '.join(map(str, program.row_lengths.values()))
  blueprint = program.blueprint
  active = (
    f' ({blueprint.active():,} active per token, {blueprint.active(tables=False):,} without tables)'
    if blueprint.active() < blueprint.size
    else ''
  )
  return (
    f'{blueprint.size:,} parameters{active} on {devices}; {trainer.compute_dtype}, remat {variant.remat}, '
    f'{trainer.batch_size:,} rows of {lengths} tokens per step in {variant.accumulate} micro-batches '
    f'({rows_per_device(variant)} rows per device)'
  )


def _memory(planned: Planned, device: Device | None) -> str:
  traced, compiled = planned.variant.footprint, planned.compiled
  parts = [(f'  {name}', size) for name, size in traced.parts().items()]
  sizes = [
    *parts[:3],
    ('state and batch', traced.arguments),
    *parts[3:],
    ('other arrays at the peak', traced.total - traced.arguments),
    ('total', traced.total),
    ('live when the backward pass starts', traced.saved),
  ]
  column: dict[str, str] = {}
  if compiled is not None:
    column = {
      'memory per device': 'compiled',
      'state and batch': format_bytes(compiled.arguments),
      'other arrays at the peak': format_bytes(compiled.total - compiled.arguments),
      'total': format_bytes(compiled.total),
      'live when the backward pass starts': format_bytes(compiled.saved),
    }
  rows = [('memory per device', 'traced'), *((name, format_bytes(size)) for name, size in sizes)]
  table = text_table([(*row, column.get(row[0], '')) for row in rows], '<>>')
  return f'{table}\n{_fit(planned, device)}'.rstrip()


def _fit(planned: Planned, device: Device | None) -> str:
  if device is None:
    return ''
  free = device.usable - (1 + FIT_MARGIN) * planned.variant.footprint.total
  share = abs(free) / device.usable
  size = (
    f'{format_bytes(int(device.usable))} assumed usable of {format_bytes(int(device.memory))}, traced total + '
    f'{FIT_MARGIN:.0%}'
  )
  text = (
    f'fits into one {device.kind} ({size}): {format_bytes(int(free))} ({share:.0%}) free'
    if planned.fits
    else f'does not fit into one {device.kind} ({size}): {format_bytes(int(-free))} ({share:.0%}) too much'
  )
  if planned.compiled is not None and (device.usable >= planned.compiled.total) != planned.fits:
    text += (
      '\nthe program compiled for CPUs, which is an upper bound, does not fit'
      if planned.fits
      else '\nthe program compiled for CPUs fits'
    )
  return text


def _operations(planned: Planned, device: Device | None) -> str:
  variant, compiled = planned.variant, planned.compiled
  program = variant.program
  tokens = step_tokens(program) / program.mesh.size
  lines = [
    f'FLOPs per device and step, traced: model {program.flops.visible * tokens:.4g} ({CONVENTION}; full attention: '
    f'{program.flops.full * tokens:.4g}), products of the step {variant.footprint.flops:.4g}'
    + ('' if compiled is None else f'; compiled: {compiled.flops:.4g}')
  ]
  if compiled is not None and variant.footprint.repeated:
    lines.append(
      f'compiled for CPUs, which compute a grouped product (ragged_dot) for every group: '
      f'{variant.footprint.repeated:.4g} of the compiled FLOPs, and temporaries, that accelerators do not need'
    )
  title = f'collectives, {"traced" if compiled is None else "compiled"}'
  rows = [(title, 'mesh axes', 'number', 'bytes', '' if device is None else 'time, assumed rates')]
  for c in communication(planned):
    seconds = 0 if device is None else collective_seconds(c, device, variant.mesh_shape)
    rows.append(
      (
        c.kind,
        '+'.join(c.axes),
        f'{c.count:,}' if c.count else '',
        format_bytes(c.bytes),
        '' if device is None else _seconds(seconds),
      )
    )
  lines.append(text_table(rows, '<<>>>') if len(rows) > 1 else f'{title}: none')
  return '\n'.join(lines)


def _time(planned: Planned) -> str:
  variant, time, cost = planned.variant, planned.time, planned.cost
  if time is None or cost is None:
    return f'time: unknown, because {no_time(variant.program)}'
  size = variant.program.mesh.size
  lines = [
    f'time per step (products at the MFU of the nearest recorded step, {variant.recorded.mfu:.1%}; '
    f'{"traced" if planned.compiled is None else "compiled"} collectives): '
    f'{_seconds(time.estimate)}, {_seconds(time.slowest)} without overlap: compute '
    f'{_seconds(time.compute)}, collectives of parameters and gradients {_seconds(time.overlapped)}, other '
    f'collectives {_seconds(time.exposed)}',
    f'MFU {cost.mfu:.1%} ({CONVENTION}), {step_tokens(variant.program) / time.estimate:,.0f} tokens per second, '
    f'{cost.tokens:.4g} tokens in {cost.days:.3g} days'
    + (
      ''
      if cost.price is None
      else f', {cost.days * 24 * size:,.0f} device-hours, cost {cost.price:,.0f}'
    ),
  ]
  return '\n'.join(lines)


def _seconds(seconds: float) -> str:
  return f'{seconds:.3g} s' if seconds >= 1 else f'{1e3 * seconds:.3g} ms'


def _variants(variants: tuple[Planned, ...]) -> str:
  rows = [('settings', 'fits', 'traced', 'compiled', 'estimated time', 'MFU')]
  for planned in variants:
    compiled = '' if planned.compiled is None else format_bytes(planned.compiled.total)
    rows.append(
      (
        _settings(planned.variant),
        'yes' if planned.fits else 'no',
        format_bytes(planned.variant.footprint.total),
        compiled or ('not compiled' if planned.error is None else 'failed'),
        '' if planned.time is None else _seconds(planned.time.estimate),
        '' if planned.cost is None else f'{planned.cost.mfu:.1%}',
      )
    )
  return text_table(rows, '<<>>>>')


def _settings(variant: Variant) -> str:
  return (
    ' '.join(
      b
      for b in variant.bindings
      if not b.startswith('Experiment.') and not (b.startswith('Mesh.') and b.endswith('=1'))
    )
    or 'unchanged'
  )


def assumptions(plan: Plan) -> list[str]:
  """Returns the assumptions behind the numbers of the plan."""
  variant, device = plan.base.variant, plan.request.device
  task = variant.program.experiment.task
  assert task is not None  # A variant is complete.
  program = variant.program
  with in_step(target=None if device is None else device.platform):
    kernels = attention_kernels(
      program.blueprint.shapes,
      task,
      program.trainer.compute_dtype,
      program.layout,
      program.batch_size,
    )
  lines = [
    'memory, traced: the state and the batch are exact; other arrays follow the shardings of the '
    'config, and elementwise '
    'operations are computed inside the operations that read them: temporaries are an estimate',
    f'attention: {"; ".join(kernels) or "none"}. A fused kernel saves the same arrays as Blockwise '
    '(queries, keys, values, output, row statistics); its temporaries are an estimate',
  ]
  if plan.base.compiled is not None:
    lines.append(
      'memory and collectives, compiled: by XLA for CPUs, which computes bfloat16 products and some collectives in '
      'float32, and fuses less than XLA for GPUs and TPUs: its temporaries are an upper bound'
    )
    if plan.base.compiled.unknown_loops:
      lines.append(
        f'FLOPs of the compiled step: {plan.base.compiled.unknown_loops} loops over tiles of attention count all '
        'tiles, because their lengths depend on the documents of a row'
      )
  if device is None:
    return lines
  lines += [
    f'{device.kind}: {format_bytes(int(device.memory))} of memory, of which {USABLE_MEMORY:.0%} are usable, '
    f'{device.peak / 1e12:g} TFLOP/s (bfloat16, dense); sends '
    f'{device.link / 1e9:g} GB/s inside its domain of {device.domain:,} devices, {device.network / 1e9:g} '
    f'GB/s outside ({device.source})',
    *_recorded(variant, device),
    f'collectives: rings at {LINK_EFFICIENCY:.0%} of the bandwidth, neighbours in the mesh in one domain; those over '
    'data and fsdp run beside the compute, others do not',
    'not included: data, evaluation, checkpoints, compilation, failures',
  ]
  return lines


def _recorded(variant: Variant, device: Device) -> list[str]:
  """Returns the recorded step behind the time, and how far the model is from it."""
  if no_time(variant.program) is not None:
    return []
  run, flops = variant.recorded, variant.program.flops.visible
  line = (
    f'compute: the products of the step at {run.mfu:.1%} of the peak, the MFU of a recorded step of a '
    f'{"mixture of experts" if run.experts else "GPT-2"} of {run.name} parameters, '
    f'{run.flops / 1e9:.3g} GFLOPs per token, on one {run.kind}; this model: {flops / 1e9:.3g}'
  )
  far = not 1 / SMALLER <= flops / run.flops <= SMALLER
  unlike = [f'no step on a {device.kind}'] if device.kind != run.kind else []
  unlike += ['no step of a model of this size'] if far else []
  return [line + (f'. Recorded is {" and ".join(unlike)}' if unlike else '')]


def plan_json(plan: Plan) -> dict[str, Any]:
  """Returns the plan as values that JSON can represent."""
  device = plan.request.device
  return {
    'files': list(plan.request.files),
    'devices': plan.base.variant.program.mesh.size,
    'device': None if device is None else dataclasses.asdict(device),
    'experiment': _variant_json(plan.base, device),
    'changes': [_variant_json(planned, device) for planned in plan.changes],
    'search': [_variant_json(planned, device) for planned in plan.best],
    'variants_tried': plan.num_tried or len(plan.changes),
    'assumptions': assumptions(plan),
  }


def _variant_json(planned: Planned, device: Device | None) -> dict[str, Any]:
  variant, compiled = planned.variant, planned.compiled
  traced = variant.footprint
  result: dict[str, Any] = {
    'settings': list(variant.bindings),
    'mesh': variant.mesh_shape,
    'remat': variant.remat,
    'accumulate': variant.accumulate,
    'fits': planned.fits,
    'bytes_per_device': {**traced.parts(), 'total': traced.total},
    'live_before_backward': traced.saved,
    'flops_per_device': traced.flops,
    'model_flops': step_flops(variant.program),
    'model_flops_full_attention': variant.program.flops.full * step_tokens(variant.program),
    'expected_collectives': [
      {'kind': kind, 'axes': axes, 'bytes': size}
      for (kind, axes), size in traced.collectives.items()
    ],
    'step': None if variant.time is None else dataclasses.asdict(variant.time),
    'cost': None if planned.cost is None else dataclasses.asdict(planned.cost),
    'error': planned.error,
    'compiled': None if compiled is None else dataclasses.asdict(compiled),
  }
  if compiled is not None and device is not None:
    result['collective_seconds'] = [
      collective_seconds(c, device, variant.mesh_shape) for c in compiled.collectives
    ]
  return result
