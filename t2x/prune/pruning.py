"""Removal of attention heads from a trained run: `t2x prune`."""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from t2x import config as config_lib
from t2x.base.errors import UserError
from t2x.base.files import check_new_folder
from t2x.config.resolve import PartCall
from t2x.data.prepared_folders import write_folder
from t2x.data.sources.subset import Spread
from t2x.experiments import read_config, read_run_config
from t2x.loaded import Loaded, load_run
from t2x.prune.heads import (
  AttentionHeads,
  Cut,
  cut,
  find_heads,
  importance,
  remaining,
  removal_order,
  row_losses,
  scaled,
)
from t2x.train.params import Params

# Relative difference allowed between the losses of the masked and of the smaller model: sums over fewer heads
# are added in another order.
TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class HeadScores:
  """The importance of the heads of a model.

  Attributes:
    heads: the attention sublayers.
    scores: importance of each group of heads, [rows, groups] by name of the sublayer.
    split: the split of the data.
    num_rows: number of rows.
  """

  heads: Sequence[AttentionHeads]
  scores: Mapping[str, np.ndarray]
  split: str
  num_rows: int

  @property
  def size(self) -> int:
    """Number of heads."""
    return sum(array.size * sublayer.group_size for sublayer, array in self._pairs())

  def table(self, masks: Mapping[str, np.ndarray]) -> str:
    """Returns a line per layer; the importance of removed heads is in parentheses."""
    lines = []
    for sublayer, array in self._pairs():
      stack, _, rest = sublayer.name.partition('.blocks.')
      part = rest.partition('.')[2]
      for row, layer in enumerate(sublayer.layers):
        cells = [
          f' {value:.3f} ' if keep else f'({value:.3f})'
          for value, keep in zip(array[row], masks[sublayer.name][row], strict=True)
        ]
        lines.append((stack, layer, f'{stack}, layer {layer}, {part}: {" ".join(cells)}'.rstrip()))
    return '\n'.join(text for *_, text in sorted(lines))

  def as_json(self, masks: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the scores and the remaining groups of heads as JSON-compatible values."""
    arrays = {'importance': self.scores, 'kept': masks}
    return {'split': self.split, 'rows': self.num_rows} | {
      title: {name: array.tolist() for name, array in by_head.items()}
      for title, by_head in arrays.items()
    }

  def _pairs(self) -> Iterator[tuple[AttentionHeads, np.ndarray]]:
    return ((sublayer, self.scores[sublayer.name]) for sublayer in self.heads)


def score_heads(
  loaded: Loaded, *, split: str | None = None, num_rows: int | None = 1024
) -> HeadScores:
  """Computes the importance of the heads of a run by gradient; see `t2x.prune.heads.importance`.

  Args:
    loaded: the run.
    split: split of the task's source; None: its `train_split`.
    num_rows: number of rows, evenly spaced in the split (of each task of a mixture); None: all.

  Raises:
    UserError: heads of this model cannot be removed, or the split has no targets.
  """
  blueprint = loaded.inference.program.blueprint
  heads = find_heads(blueprint.infos)
  split = split or loaded.task.train_split
  params = loaded.params
  (task, *_) = loaded.task.parts.values()
  batches = _batches(loaded, split, num_rows)
  layout = loaded.inference.program.layout
  scores, count = importance(task.sums, blueprint, params, batches, heads, layout)
  return HeadScores(heads, scores, split, count)


def _batches(loaded: Loaded, split: str, num_rows: int | None) -> Iterator[Mapping[str, jax.Array]]:
  """Yields the evaluation batches of a split, on the devices."""
  inference = loaded.inference
  for task in loaded.task.parts.values():
    own = loaded.task.split_of(task, split)
    rows = inference.rows(own, task)
    task.check_rows(own, rows)
    if num_rows is not None and num_rows < len(rows):
      rows = Spread(rows, num_rows)
    yield from map(inference.on_device, inference.evaluation_batches(rows, task))


def prune_run(
  run: Path,
  out: Path,
  count: int,
  *,
  checkpoint: Literal['best', 'last'] | int = 'last',
  split: str | None = None,
  num_rows: int | None = 1024,
  batch_size: int | None = None,
  overrides: Sequence[str] = (),
) -> None:
  """Writes a run folder without the least important heads of a run: config, checkpoint of step 0, tokenizer.

  Args:
    run: the run folder.
    out: the new run folder.
    count: number of heads to remove; with grouped queries, a multiple of the size of a group.
    checkpoint: the checkpoint: 'best', 'last' or a step.
    split: as in `score_heads`.
    num_rows: as in `score_heads`.
    batch_size: rows per batch; None: the trainer's batch size, or 32 without a trainer.
    overrides: `NAME=VALUE` each; they override the config of the run.

  Raises:
    UserError: the heads cannot be removed, or too many are to be removed.
  """
  check_new_folder('--out', out)
  config = read_run_config(run, overrides)
  experiment = config.build()
  if experiment.teacher is not None:
    raise UserError(
      f'{run} was distilled from Experiment.teacher, whose heads would be removed, too: set '
      '--gin.Experiment.teacher=None and the distillation of the task to None'
    )
  loaded = load_run(run, experiment, checkpoint, batch_size=batch_size)
  ranking = score_heads(loaded, split=split, num_rows=num_rows)
  masks = remaining(ranking.heads, _chosen(ranking, count))
  blueprint = loaded.inference.program.blueprint
  params = loaded.params
  smaller = cut(blueprint, params, ranking.heads, masks)
  text = config_lib.GinText(
    pruned_gin(config, smaller, ranking.heads), f'{run} without {count} heads'
  )
  pruned = read_config([run / 'config.gin', text], overrides, base=config)
  losses = _compare(loaded, ranking, masks, smaller, pruned)
  print(
    f'{run}, step {loaded.step}: importance of {ranking.size} heads from {ranking.num_rows:,} rows of the split '
    f'{ranking.split}; removed heads in parentheses'
  )
  print(ranking.table(masks))
  print(f'loss on the first rows: {losses[0]:.4f} with all heads, {losses[1]:.4f} without {count}')
  about = {'run': str(run), 'step': loaded.step} | ranking.as_json(masks)
  _write(run, out, config_lib.render(pruned), smaller.params, about)
  sizes = [sum(array.size for array in p.values()) for p in (params, smaller.params)]
  print(f'wrote {out}: {sizes[1]:,} parameters (before: {sizes[0]:,})')
  print(
    f'to train it further: t2x train {out}/config.gin --out RUN '
    f"'--gin.Experiment.init_from=@InitFrom()' --gin.InitFrom.run={out}"
  )


def _chosen(ranking: HeadScores, count: int) -> list[Any]:
  """Returns the groups to remove for `count` heads.

  Raises:
    UserError: the layers have fewer heads, or a group would be split.
  """
  sizes = {sublayer.name: sublayer.group_size for sublayer in ranking.heads}
  order = removal_order(ranking.scores)
  totals = [0, *itertools.accumulate(sizes[name] for name, *_ in order)]
  if count > totals[-1]:
    raise UserError(
      f'--heads {count}: the model has {ranking.size} heads, of which at most {totals[-1]} can be removed: every '
      'layer keeps one' + (' group' if max(sizes.values()) > 1 else '')
    )
  if count not in totals:
    size = max(sizes.values())
    raise UserError(
      f'--heads {count}: {size} query heads share one key-value head and are removed together: use a multiple '
      f'of {size}'
    )
  return order[: totals.index(count)]


def pruned_gin(config: config_lib.Config, smaller: Cut, heads: Sequence[AttentionHeads]) -> str:
  """Returns the bindings that build a smaller model, to be read after the files of the config.

  Args:
    config: the config of the larger model. Its bindings remain in use: each new scope is inside of an old one.
    smaller: the smaller model.
    heads: the attention sublayers of the larger model.

  Raises:
    UserError: the config builds an attention sublayer in another way than by parameters of `Stack` and its
      blocks.
  """
  values = config.root.values
  lines = ['Experiment.init_from = None'] if values.get('init_from') is not None else []
  stacks: list[PartCall] = []
  for path, period in smaller.stacks.items():
    stack = _call(config, path)
    if any(stack is other for other in stacks):
      raise UserError(
        f'{path} and another stack have the same bindings: set them in different scopes, such as '
        'Decoder.stack = @decoder/Stack'
      )
    stacks.append(stack)
    prefix = path.removesuffix('.stack').replace('.', '_')
    old = stack.values['blocks']
    references = []
    for i in range(period):
      block, scope = old[i % len(old)], (f'{prefix}_{i}',)
      references.append(f'@{_title(config, block, scope)}')
      for name, number in smaller.counts[path][i].items():
        mixer = _call(config, f'{path}.blocks.{i % len(old)}.{name}')
        size = next(
          sublayer.group_size
          for sublayer in heads
          if sublayer.name == f'{path}.blocks.{i % len(old)}.{name}'
        )
        inner = _title(config, mixer, (*scope, name))
        lines.append(f'{_title(config, block, scope)}.{name} = @{inner}')
        settings = {'num_heads': number * size, 'head_dim': _head_dim(smaller, path, i, name)}
        if size > 1 or mixer.values.get('num_kv_heads') is not None:
          settings['num_kv_heads'] = number
        lines += [f'{inner}.{key} = {value}' for key, value in settings.items()]
    lines.append(f'{_title(config, stack, ())}.blocks = [{", ".join(references)}]')
  return '\n'.join(lines) + '\n'


def _head_dim(smaller: Cut, path: str, block: int, name: str) -> int:
  return int(smaller.params[f'{path}.blocks.{block}.{name}.out.kernel'].shape[2])


def _title(config: config_lib.Config, call: PartCall, scope: Sequence[str]) -> str:
  """Returns 'scope/Name' of a part in a scope inside of its own."""
  return '/'.join((*call.scope, *scope, config.name_of(call.part)))


def _call(config: config_lib.Config, path: str) -> PartCall:
  """Returns the call that builds the module of this path in the model.

  Raises:
    UserError: the config builds it in another way than as a parameter of the same name.
  """
  value: Any = config.root.values['model']
  for step in path.split('.'):
    if isinstance(value, PartCall):
      value = value.values.get(step)
    elif isinstance(value, (list, tuple)) and step.isdigit() and int(step) < len(value):
      value = value[int(step)]
    else:
      value = None
  if not isinstance(value, PartCall) or value.obj is not value.part.obj:
    raise UserError(
      f'the config does not set {path} as a parameter of that name: heads of this model cannot be pruned'
    )
  return value


def _compare(
  loaded: Loaded,
  ranking: HeadScores,
  masks: Mapping[str, np.ndarray],
  smaller: Cut,
  pruned: config_lib.Config,
) -> tuple[float, float]:
  """Returns the mean loss of the first batch with all heads, and without the removed ones.

  Raises:
    UserError: the smaller model differs from the model in which the removed heads are masked.
  """
  from t2x.train.evaluation import Inference

  program, params = loaded.inference.program, loaded.params
  (task, *_) = loaded.task.parts.values()
  batch = next(_batches(loaded, ranking.split, loaded.inference.batch_size))

  @jax.jit
  def losses(params: Params, batch: Mapping[str, jax.Array]) -> Any:
    masked = scaled(params, ranking.heads, masks)
    settings = task.sums, program.blueprint
    return tuple(row_losses(*settings, p, batch, program.layout) for p in (params, masked))

  (before, weights), (masked, _) = jax.device_get(losses(params, batch))
  try:
    new = Inference(pruned.build(), loaded.tokenizer).program
    shapes = {name: info.shape for name, info in new.blueprint.infos.items()}
    if shapes != {name: tuple(array.shape) for name, array in smaller.params.items()}:
      raise UserError('the config would build parameters of other shapes')
    losses_after = jax.jit(lambda p, b: row_losses(task.sums, new.blueprint, p, b, new.layout))
    after, _ = losses_after(smaller.params, batch)
  except UserError as error:
    raise UserError(f'heads of this model cannot be pruned: {error}', error.exit_code) from error
  if not np.allclose(after, masked, rtol=TOLERANCE, atol=TOLERANCE):
    raise UserError(
      'heads of this model cannot be pruned: a part depends on the number of heads (such as ALiBi or a norm '
      'over all heads), so that the smaller model differs from the model with masked heads: '
      f'loss {np.mean(after):.4f} instead of {np.mean(masked):.4f}'
    )
  mean = [float(x[weights > 0].mean()) for x in (before, masked)]
  return mean[0], mean[1]


def _write(run: Path, out: Path, config: str, params: Params, about: Mapping[str, Any]) -> None:
  """Writes the new run folder atomically."""
  from t2x.train.checkpoints.store import Checkpoints

  def write(folder: Path) -> None:
    checkpoints = Checkpoints(folder / 'checkpoints')
    checkpoints.save(0, {f'params.{name}': array for name, array in params.items()})
    checkpoints.close()
    (folder / 'config.gin').write_text(config)
    (folder / 'heads.json').write_text(json.dumps(about, indent=1) + '\n')
    for name in ('tokenizer', 'hub', 'modules'):
      if (run / name).exists():
        shutil.copytree(run / name, folder / name)

  write_folder(out, write)
