"""Starting from another run: its parameters in a new model, wholly, partly, or fitted to new shapes.

Every parameter of either side is accounted for in a table. What does not fit is an error unless the
config says what to do with it.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from t2x.data import load_tokenizer
from t2x.errors import UserError
from t2x.layers import resize_grid
from t2x.ranges import Natural, Size, Text
from t2x.train.checkpoints import Checkpoints
from t2x.train.params import Params, matches_nothing
from t2x.train.saved_params import SavedParams

Shape = tuple[int, ...]


@runtime_checkable
class Resize(Protocol):
  """A way from one shape to another."""

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    """An array of the shape of `target`.

    Args:
      source: the saved parameter.
      target: ours, as it was initialised. Given back as it is, it counts as kept new.

    Raises:
      UserError: these two shapes do not go together.
    """


@dataclasses.dataclass(frozen=True)
class KeepNew:
  """The saved one is left out: a head for other classes starts anew."""

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    return target


@dataclasses.dataclass(frozen=True)
class ResizeVocabulary:
  """The first entries are the saved ones, those beyond keep their initialisation.

  For tokenizers that share their first ids, in tables [vocab, ...], projections to logits
  [..., vocab] and biases [vocab]: whichever one axis differs. A smaller vocabulary cuts the last
  entries off. (A table of positions grows in the same way where positions are not to be stretched.)
  """

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    axes = [
      axis for axis in range(target.ndim) if source.shape[axis:][:1] != target.shape[axis:][:1]
    ]
    if source.ndim != target.ndim or len(axes) != 1:
      raise UserError('ResizeVocabulary wants shapes that differ in one axis, the vocabulary')
    (axis,) = axes
    shared = min(source.shape[axis], target.shape[axis])
    first = jax.lax.slice_in_dim(source, 0, shared, axis=axis).astype(target.dtype)
    return jax.lax.dynamic_update_slice_in_dim(target, first, 0, axis=axis)


@dataclasses.dataclass(frozen=True)
class InterpolatePositions:
  """Stretches a learned table [length, d_model] over another length (linear, in float32).

  Both ends of the table stay the ends: row i of L stands at (i + 1/2) / L.

  Attributes:
    num_extra: first rows, which are no positions and are kept (`LearnedPositions.offset`).
  """

  num_extra: Natural = 0

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    _check_table('InterpolatePositions', source, target, self.num_extra)
    length = target.shape[0] - self.num_extra
    extra, rows = source[: self.num_extra], source[self.num_extra :].astype(jnp.float32)
    rows = jax.image.resize(rows, (length, rows.shape[1]), method='linear')
    return jnp.concatenate([extra, rows]).astype(target.dtype)


@dataclasses.dataclass(frozen=True)
class InterpolateGrid:
  """Resizes the table of a `LearnedGrid` to another grid, just as that does for other image sizes
  (bicubic; ViT, https://arxiv.org/abs/2010.11929).

  Attributes:
    num_extra: first rows, which are kept (`LearnedGrid.num_extra`: the class token).
    old: (height, width) of the saved grid; None: it is square.
    new: (height, width) of ours; None: it is square.
  """

  num_extra: Natural = 1
  old: tuple[Size, Size] | None = None
  new: tuple[Size, Size] | None = None

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    _check_table('InterpolateGrid', source, target, self.num_extra)
    old = _grid('old', self.old, source.shape[0] - self.num_extra)
    new = _grid('new', self.new, target.shape[0] - self.num_extra)
    return resize_grid(source, old, new, self.num_extra).astype(target.dtype)


def _check_table(name: str, source: Array, target: Array, num_extra: int) -> None:
  fits = source.ndim == target.ndim == 2 and source.shape[1] == target.shape[1]
  if not fits:
    raise UserError(f'{name} wants two tables [positions, d_model] of the same d_model')
  if not 0 <= num_extra < min(source.shape[0], target.shape[0]):
    raise UserError(f'{name}.num_extra = {num_extra} leaves no positions')


def _grid(name: str, given: tuple[int, int] | None, patches: int) -> tuple[int, int]:
  grid = given or (math.isqrt(patches),) * 2
  if math.prod(grid) != patches:
    found = f'{grid[0]} x {grid[1]}' if given else 'no square'
    raise UserError(
      f'the {patches} patches of the {name} grid are {found}: set InterpolateGrid.{name} to '
      '(height, width), or num_extra to the number of class tokens'
    )
  return grid


@dataclasses.dataclass(frozen=True)
class Row:
  """What becomes of a parameter of ours, or of one of the run that nobody takes (no `name`).

  Attributes:
    name: ours.
    shape: ours; that of the run for one that nobody takes.
    source: the run's name.
    saved: the run's shape.
    what: loaded, resized, new, mismatched or unused, and why.
    resize: makes ours out of the saved one.
  """

  name: str
  shape: Shape
  source: str
  saved: Shape | None
  what: str
  resize: Resize | None = None

  @property
  def kind(self) -> str:
    """The first word of `what`."""
    return self.what.partition(' ')[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitFrom:
  """Loads the parameters of another run's checkpoint into a new model.

  Step, optimizer and random key are those of a new run. A parameter's name is its path, as
  `embedding.table` or `body.stack.blocks.0.mixer.q.kernel`; a pattern is a regular expression that
  matches a whole name ('head.*' is the head).

  Attributes:
    run: the other run's folder.
    checkpoint: 'best', 'last', or a step. A corrupt one gives way to the one before.
    include: patterns of our parameters to be loaded.
    exclude: patterns of our parameters to be left as they are initialised.
    rename: regular expression -> replacement, applied to the run's names in order (`re.sub`, so a
      part of a name is enough and groups are `\\1`), to give ours.
    use_ema: takes the moving average where the run keeps one.
    resize: pattern -> what to do with our parameters whose shape differs; the first that matches.
  """

  run: Text
  checkpoint: Literal['best', 'last'] | Natural = 'last'
  include: Sequence[str] = ('.*',)
  exclude: Sequence[str] = ()
  rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
  use_ema: bool = True
  resize: Mapping[str, Resize] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for field in ('include', 'exclude', 'rename', 'resize'):
      if isinstance(getattr(self, field), str):
        raise UserError(f'InitFrom.{field} is a list of patterns, not one: write it in [ ]')
      for pattern in getattr(self, field):
        try:
          re.compile(pattern)
        except re.error as error:
          raise UserError(
            f'InitFrom.{field}: {pattern!r} is no regular expression: {error}'
          ) from error

  def plan(
    self, params: Mapping[str, Any], whole: bool = False
  ) -> tuple[Callable[[], Params], str]:
    """Decides about every parameter from shapes alone.

    Args:
      params: all of ours, initialised (or their shapes, for the table alone or if `whole`).
      whole: refuses to leave a parameter of ours new, or to resize one.

    Returns:
      A function that reads what is needed and gives all parameters with it, in the shardings of ours;
      and the table of what becomes of each.

    Raises:
      UserError: there is no such run or intact checkpoint, a pattern matches nothing, or shapes
        differ and nothing says what to do.
    """
    checkpoints = self._checkpoints()
    try:
      step = checkpoints.intact_step(self.checkpoint)
    except UserError as error:
      raise UserError(f'InitFrom.run = {self.run!r}: {error}', error.exit_code) from error
    saved = SavedParams(checkpoints, step, self.use_ema)
    where = f'step {step} of {self.run}' + (' (moving average)' if saved.averaged else '')
    rows = self._rows(where, saved.shapes, params)
    partial = [f'{row.name}: {row.what}' for row in rows if row.name and row.kind != 'loaded']
    if whole and partial:
      raise UserError(f'{where} lacks {len(partial)} parameters ({"; ".join(partial[:3])})')

    def load() -> Params:
      return _load(saved, rows, params)

    return load, _table(where, rows)

  def tokenizer_note(self, tokenizer: Any) -> str:
    """A line for the table when the run's tokenizer is another one; '' when it is not."""
    folder = Path(self.run) / 'tokenizer'
    if tokenizer is None or not folder.exists():
      return ''
    if load_tokenizer(folder).fingerprint == tokenizer.fingerprint:
      return ''
    return f'\nthe tokenizer of {self.run} is another one: a token may have another id there'

  def _checkpoints(self) -> Checkpoints:
    """The run's, which choose its best one by its own metric."""
    folder = Path(self.run)
    if not folder.is_dir():
      raise UserError(f'InitFrom.run: there is no folder {folder}')
    checkpoints = Checkpoints(folder / 'checkpoints')
    for step in reversed(checkpoints.steps() if self.checkpoint == 'best' else []):
      try:
        metric, mode = checkpoints.about(step)['best']
      except (OSError, ValueError, KeyError):
        continue  # Damaged, which is told when its turn comes.
      return Checkpoints(folder / 'checkpoints', best_metric=metric, best_mode=mode)
    return checkpoints

  def _rows(self, where: str, saved: Mapping[str, Shape], ours: Mapping[str, Any]) -> list[Row]:
    for field in ('include', 'exclude', 'resize'):
      for pattern in getattr(self, field):
        if not any(re.fullmatch(pattern, name) for name in ours):
          raise matches_nothing(f'InitFrom.{field}', pattern, 'of our parameters', ours)
    sources = self._renamed(where, saved)
    rows = []
    problems = []
    for name, leaf in ours.items():
      source = sources.get(name)
      try:
        rows.append(self._row(name, leaf, source, saved[source] if source else None))
      except UserError as error:
        problems.append(str(error))
    if problems:
      told = '\n  '.join(problems)
      raise UserError(
        f'{where} does not fit:\n  {told}\n'
        'add a parameter to InitFrom.exclude to keep it new, or say in InitFrom.resize what to do, '
        "as {'head.*': @KeepNew(), 'embedding.table': @ResizeVocabulary()}"
      )
    if not any(row.kind in ('loaded', 'resized') for row in rows):
      raise UserError(
        f'InitFrom takes nothing from {where}: its names are {_some(saved)}; ours are {_some(ours)}: '
        'see InitFrom.rename, include and exclude'
      )
    taken = {row.source for row in rows}
    return rows + [Row('', saved[s], s, saved[s], 'unused') for s in saved if s not in taken]

  def _renamed(self, where: str, saved: Mapping[str, Shape]) -> dict[str, str]:
    """Our name -> the run's."""
    renamed = {name: name for name in saved}
    for pattern, replacement in self.rename.items():
      if not any(re.search(pattern, name) for name in renamed.values()):
        raise matches_nothing('InitFrom.rename', pattern, f'in {where}', renamed.values())
      try:
        renamed = {name: re.sub(pattern, replacement, now) for name, now in renamed.items()}
      except (re.error, IndexError) as error:
        raise UserError(f'InitFrom.rename: {replacement!r} for {pattern!r}: {error}') from error
    sources: dict[str, str] = {}
    for name, now in renamed.items():
      if now in sources:
        raise UserError(f'InitFrom.rename gives {sources[now]} and {name} the same name {now}')
      sources[now] = name
    return sources

  def _row(self, name: str, leaf: Any, source: str | None, saved: Shape | None) -> Row:
    """Raises UserError for shapes that differ where nothing says what to do."""
    shape = tuple(leaf.shape)
    if source is None or saved is None:
      return Row(name, shape, '', None, 'new (not in the run)')
    left_out = None
    if not any(re.fullmatch(pattern, name) for pattern in self.include):
      left_out = 'not included'
    elif any(re.fullmatch(pattern, name) for pattern in self.exclude):
      left_out = 'excluded'
    if left_out:
      differs = f'mismatched {saved}, kept new' if saved != shape else 'new'
      return Row(name, shape, source, saved, f'{differs} ({left_out})')
    if saved == shape:
      return Row(name, shape, source, saved, 'loaded')
    ways = [way for pattern, way in self.resize.items() if re.fullmatch(pattern, name)]
    differs = f'{name} is {saved} in the run' + (f' (as {source})' if source != name else '')
    if not ways:
      raise UserError(f'{differs} and {shape} here')
    try:
      result, kept = _try_out(ways[0], saved, leaf)
    except UserError as error:
      raise UserError(f'{differs} and {shape} here: {error}') from error
    if result != shape:
      raise UserError(f'{differs} and {shape} here, and {ways[0]} makes it {result}')
    if kept:
      return Row(name, shape, source, saved, f'mismatched {saved}, kept new ({ways[0]})')
    return Row(name, shape, source, saved, f'resized from {saved} ({ways[0]})', ways[0])


def _try_out(resize: Resize, saved: Shape, leaf: Any) -> tuple[Shape, bool]:
  """The shape of what comes out, and whether it is ours as it was; nothing is computed."""
  kept = False

  def attempt(source: Array, target: Array) -> Array:
    nonlocal kept
    result = resize(source, target)
    kept = result is target
    return result

  shapes = (jax.ShapeDtypeStruct(s, leaf.dtype) for s in (saved, leaf.shape))
  return tuple(jax.eval_shape(attempt, *shapes).shape), kept


def _load(saved: SavedParams, rows: Sequence[Row], params: Mapping[str, Any]) -> Params:
  """Reads straight into the shardings of `params`; only what is resized is first whole on each
  device."""
  ours = dict(params)
  wanted = {}
  for row in rows:
    if row.kind in ('loaded', 'resized') and row.saved is not None:
      leaf = ours[row.name]
      sharding = leaf.sharding
      if row.resize is not None and isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
      wanted[row.source] = jax.ShapeDtypeStruct(row.saved, leaf.dtype, sharding=sharding)
  read = saved.read(wanted)
  for row in rows:
    if row.source in wanted and row.name:
      array, leaf = read[row.source], ours[row.name]
      if row.resize is not None:
        array = jax.jit(row.resize, out_shardings=leaf.sharding)(array, leaf)
      ours[row.name] = array
  return ours


def _table(where: str, rows: Sequence[Row]) -> str:
  kinds = ('loaded', 'resized', 'new', 'mismatched', 'unused')
  counts = {kind: sum(row.kind == kind for row in rows) for kind in kinds}
  told = ', '.join(f'{count} {kind}' for kind, count in counts.items())
  cells = [('parameter', 'shape', 'from', ''), *_cells(rows)]
  widths = [max(len(row[column]) for row in cells) for column in range(3)]
  lines = [
    f'{name:{widths[0]}}  {shape:{widths[1]}}  {source:{widths[2]}}  {what}'.rstrip()
    for name, shape, source, what in cells
  ]
  return '\n'.join([f'initialised from {where}: {told}', *lines])


def _cells(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, str]]:
  for row in rows:
    yield row.name or '-', ' x '.join(map(str, row.shape)), row.source or '-', row.what


def _some(names: Any) -> str:
  first = list(names)[:3]
  return ', '.join(first) + (', ...' if len(names) > 3 else '')
