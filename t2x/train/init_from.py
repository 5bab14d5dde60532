"""Initialises a new model from the parameters of a source run: all, some, or resized.

A table lists every parameter of both models. Parameters with different shapes are an error unless the config
excludes or resizes them.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Text
from t2x.base.text_table import text_table
from t2x.data import Tokenizer, load_tokenizer
from t2x.train.checkpoints.resize import Resize
from t2x.train.checkpoints.saved_params import SavedParams
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.groups import check_pattern, no_match_error
from t2x.train.params import ParamInfo, Params

__all__ = ['InitFrom']

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of the table: a parameter of the new model, or an unused parameter of the source run.

  Attributes:
    name: name in the new model; '' for an unused parameter.
    shape: shape in the new model; for an unused parameter, shape in the source run.
    source: name in the source run; '' if the parameter does not exist there.
    saved: shape in the source run.
    outcome: loaded, resized, new, mismatched or unused, followed by the reason.
    resize: resizes the saved parameter; None if it is not resized.
    entries: shape to resize: the saved shape without the padding of a vocabulary; None: `saved`.
  """

  name: str
  shape: Shape
  source: str
  saved: Shape | None
  outcome: str
  resize: Resize | None = None
  entries: Shape | None = None

  @property
  def kind(self) -> str:
    """The first word of `outcome`."""
    return self.outcome.partition(' ')[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitFrom:
  """Initialises a new model with the parameters of a source run's checkpoint.

  Only parameters are loaded; step, optimizer state and random key are new. The name of a parameter is its
  path, such as `embedding.table` or `body.stack.blocks.0.mixer.q.kernel`. A pattern is a regular expression
  that must match the full name ('head.*' matches all parameters of the head).

  Attributes:
    run: folder of the source run; '{seed}' in it is replaced by `Trainer.seed`, so that each seed of a sweep can have
      its own source run.
    checkpoint: 'best', 'last', or a step. If it is corrupt, the previous checkpoint is loaded.
    include: patterns of parameters of the new model to load.
    exclude: patterns of parameters of the new model to keep as initialised.
    rename: regular expression -> replacement, applied in order with `re.sub` to the names in the source run, to get the
      names in the new model (a partial match suffices; `\\1` is the first group).
    use_ema: loads the moving average if the run has one.
    resize: pattern -> function that resizes parameters with different shapes; the first match is used.
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
        raise UserError(f'InitFrom.{field} must be a list of patterns: write it in [ ]')
      for pattern in getattr(self, field):
        check_pattern(f'InitFrom.{field}', pattern)

  def of_seed(self, seed: int) -> 'InitFrom':
    """Returns the settings with the source run of a seed."""
    return dataclasses.replace(self, run=self.run.replace('{seed}', str(seed)))

  def plan(
    self,
    params: Mapping[str, Any],
    complete: bool = False,
    infos: Mapping[str, ParamInfo] | None = None,
  ) -> tuple[Callable[[], Params], str]:
    """Decides from the shape of each parameter whether to load it, resize it or keep its initial value.

    Args:
      params: all initialised parameters of the new model; shapes suffice for the table or if `complete`.
      complete: raises unless every parameter is loaded without resizing.
      infos: metadata of `params`, with the axes of vocabularies.

    Returns:
      A function that reads the checkpoint and returns all parameters with the shardings of `params`, and
      the table of all parameters.

    Raises:
      UserError: no such run or intact checkpoint, a pattern without a match, or a parameter with a different shape
        that is neither excluded nor resized.
    """
    checkpoints = self._checkpoints()
    try:
      step = checkpoints.intact_step(self.checkpoint)
    except UserError as error:
      raise UserError(f'InitFrom.run = {self.run!r}: {error}', error.exit_code) from error
    saved = SavedParams(checkpoints, step, self.use_ema)
    where = f'step {step} of {self.run}' + (' (moving average)' if saved.averaged else '')
    rows = self._rows(where, saved.shapes, params, infos or {})
    missing = [f'{row.name}: {row.outcome}' for row in rows if row.name and row.kind != 'loaded']
    if complete and missing:
      raise UserError(
        f'{where} lacks {len(missing)} parameters ({"; ".join(missing[:3])}): '
        'build the model as in that run'
      )

    def load() -> Params:
      return _load(saved, rows, params)

    return load, _table(where, rows)

  def other_tokenizer(self, tokenizer: Tokenizer | None) -> bool:
    """Returns whether the source run has a different tokenizer."""
    folder = Path(self.run) / 'tokenizer'
    if tokenizer is None or not folder.exists():
      return False
    return load_tokenizer(folder).fingerprint != tokenizer.fingerprint

  def _checkpoints(self) -> Checkpoints:
    """Returns the checkpoints of the source run, ranked by the metric of this run."""
    folder = Path(self.run)
    if not folder.is_dir():
      raise UserError(f'InitFrom.run: no folder {folder}')
    checkpoints = Checkpoints(folder / 'checkpoints')
    for step in reversed(checkpoints.steps() if self.checkpoint == 'best' else []):
      try:
        metric, mode = checkpoints.about(step)['best']
      except (OSError, ValueError, KeyError):
        continue  # Damaged: `intact_step` logs it.
      return Checkpoints(folder / 'checkpoints', best_metric=metric, best_mode=mode)
    return checkpoints

  def _rows(
    self,
    where: str,
    saved: Mapping[str, Shape],
    params: Mapping[str, Any],
    infos: Mapping[str, ParamInfo],
  ) -> list[Row]:
    for field in ('include', 'exclude', 'resize'):
      for pattern in getattr(self, field):
        if not any(re.fullmatch(pattern, name) for name in params):
          raise no_match_error(f'InitFrom.{field}', pattern, 'parameter of the new model', params)
    sources = self._renamed(where, saved)
    rows = []
    problems = []
    for name, leaf in params.items():
      source = sources.get(name)
      try:
        shape = saved[source] if source else None
        entries = shape and self._entries(shape, infos.get(name))
        rows.append(self._row(name, leaf, source, shape, entries))
      except UserError as error:
        problems.append(str(error))
    if problems:
      summary = '\n  '.join(problems)
      raise UserError(
        f'{where} does not fit the new model:\n  {summary}\n'
        'add parameters to InitFrom.exclude to keep their initial values, or to InitFrom.resize, such as '
        "{'head.*': @KeepNew(), 'embedding.table': @ResizeVocabulary()}"
      )
    if not any(row.kind in ('loaded', 'resized') for row in rows):
      raise UserError(
        f'InitFrom loads nothing from {where}: its parameters are {_first_names(saved)}; the '
        f'parameters of the new model are {_first_names(params)}: change InitFrom.rename, include or exclude'
      )
    used = {row.source for row in rows}
    return rows + [Row('', saved[s], s, saved[s], 'unused') for s in saved if s not in used]

  def _renamed(self, where: str, saved: Mapping[str, Shape]) -> dict[str, str]:
    """Returns a dict: name in the new model -> name in the source run."""
    renamed = {name: name for name in saved}
    for pattern, replacement in self.rename.items():
      if not any(re.search(pattern, name) for name in renamed.values()):
        raise no_match_error('InitFrom.rename', pattern, f'parameter of {where}', renamed.values())
      try:
        renamed = {name: re.sub(pattern, replacement, new) for name, new in renamed.items()}
      except (re.error, IndexError) as error:
        raise UserError(f'InitFrom.rename: {replacement!r} for {pattern!r}: {error}') from error
    sources: dict[str, str] = {}
    for name, new in renamed.items():
      if new in sources:
        raise UserError(f'InitFrom.rename gives {sources[new]} and {name} the same name {new}')
      sources[new] = name
    return sources

  @functools.cached_property
  def _vocab_sizes(self) -> set[int]:
    """Vocabulary sizes of the source run's tokenizer."""
    folder = Path(self.run) / 'tokenizer'
    if not folder.exists():
      return set()
    tokenizer = load_tokenizer(folder)
    return {tokenizer.vocab_size, tokenizer.target.vocab_size}

  def _entries(self, saved: Shape, info: ParamInfo | None) -> Shape:
    """Returns the shape of a saved parameter without the padding of a vocabulary."""
    if info is None or 'vocab' not in info.all_axes:
      return saved
    axis = info.all_axes.index('vocab')
    size = max((n for n in self._vocab_sizes if n <= saved[axis]), default=saved[axis])
    return (*saved[:axis], size, *saved[axis + 1 :])

  def _row(
    self,
    name: str,
    leaf: jax.Array | jax.ShapeDtypeStruct,
    source: str | None,
    saved: Shape | None,
    entries: Shape | None,
  ) -> Row:
    """Returns the row of a parameter; raises UserError for a different shape that no setting handles."""
    shape = tuple(leaf.shape)
    if source is None or saved is None or entries is None:
      return Row(name, shape, '', None, 'new (not in the run)')
    reason = None
    if not any(re.fullmatch(pattern, name) for pattern in self.include):
      reason = 'not included'
    elif any(re.fullmatch(pattern, name) for pattern in self.exclude):
      reason = 'excluded'
    if reason:
      outcome = f'mismatched {saved}, kept new' if saved != shape else 'new'
      return Row(name, shape, source, saved, f'{outcome} ({reason})')
    resizers = [resize for pattern, resize in self.resize.items() if re.fullmatch(pattern, name)]
    if saved == shape and (entries == shape or not resizers):
      return Row(name, shape, source, saved, 'loaded')
    mismatch = f'{name} is {saved} in the run' + (f' (as {source})' if source != name else '')
    if not resizers:
      raise UserError(f'{mismatch} but {shape} in the new model')
    try:
      result, is_new = _resized_shape(resizers[0], entries, leaf)
    except UserError as error:
      raise UserError(f'{mismatch} but {shape} in the new model: {error}') from error
    if result != shape:
      raise UserError(
        f'{mismatch} but {shape} in the new model, and {resizers[0]} returns {result}'
      )
    if is_new:
      return Row(name, shape, source, saved, f'mismatched {saved}, kept new ({resizers[0]})')
    padded = '' if entries == saved else f' without padding of {saved}'
    outcome = f'resized from {entries}{padded} ({resizers[0]})'
    return Row(name, shape, source, saved, outcome, resizers[0], entries)


def _resized_shape(
  resize: Resize, saved: Shape, leaf: jax.Array | jax.ShapeDtypeStruct
) -> tuple[Shape, bool]:
  """Traces `resize`; returns the shape of its result, and whether the result is the unchanged `target`."""
  is_new = False

  def call(source: Array, target: Array) -> Array:
    nonlocal is_new
    result = resize(source, target)
    is_new = result is target
    return result

  shapes = (jax.ShapeDtypeStruct(s, leaf.dtype) for s in (saved, leaf.shape))
  return tuple(jax.eval_shape(call, *shapes).shape), is_new


def _load(saved: SavedParams, rows: Sequence[Row], params: Mapping[str, Any]) -> Params:
  """Reads parameters with the shardings of `params`; parameters to resize are replicated first."""
  loaded = dict(params)
  abstract = {}
  for row in rows:
    if row.kind in ('loaded', 'resized') and row.saved is not None:
      leaf = loaded[row.name]
      sharding = leaf.sharding
      if row.resize is not None and isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
      abstract[row.source] = jax.ShapeDtypeStruct(row.saved, leaf.dtype, sharding=sharding)
  arrays = saved.read(abstract)
  for row in rows:
    if row.source in abstract and row.name:
      array, leaf = arrays[row.source], loaded[row.name]
      if row.resize is not None and row.entries is not None:
        array = array[tuple(map(slice, row.entries))]
        array = jax.jit(row.resize, out_shardings=leaf.sharding)(array, leaf)
      loaded[row.name] = array
  return loaded


def _table(where: str, rows: Sequence[Row]) -> str:
  kinds = ('loaded', 'resized', 'new', 'mismatched', 'unused')
  counts = {kind: sum(row.kind == kind for row in rows) for kind in kinds}
  summary = ', '.join(f'{count} {kind}' for kind, count in counts.items())
  cells = [('parameter', 'shape', 'from', '')]
  for row in rows:
    shape = ' x '.join(map(str, row.shape))
    cells.append((row.name or '-', shape, row.source or '-', row.outcome))
  return f'initialised from {where}: {summary}\n{text_table(cells, "<<<<")}'


def _first_names(names: Collection[str]) -> str:
  first = list(names)[:3]
  return ', '.join(first) + (', ...' if len(names) > 3 else '')
