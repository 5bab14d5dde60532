"""`t2x convert`: Hugging Face folders to run folders, and back."""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from t2x import config as config_lib
from t2x.errors import UserError

__all__ = ['export_run', 'import_folder', 'read_folder']

Load = Callable[[Sequence[str | Path], Sequence[str]], config_lib.Config]

# What makes a run of an imported model: it can generate, where it came with a tokenizer.
USE = """
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 1
  batch_size = 1
Experiment.task = @{task}()
{task}:
  source = @NoData()
  tokenizer = @RunTokenizer()
{lengths}
RunTokenizer:
  run = {run!r}
  vocab_size = {vocab_size}
{strategy}
"""
# Tokens that the rows of such a run would have.
LENGTH = 512

# What a run folder keeps of theirs, in hub/, for what our parts do not say.
CONFIG, GENERATION = 'config.json', 'generation_config.json'


def import_folder(args: argparse.Namespace, load: Load) -> None:
  """A model folder -> a run folder: config.gin and model.gin of our parts, a checkpoint of step 0, the
  tokenizer where there is one. It is there whole or not at all."""
  import jax
  from flax import nnx

  from t2x.data.folders import write_folder
  from t2x.interop import Source
  from t2x.train.streaming import save_streamed

  out = Path(args.out)
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise UserError(f'{out} is there already: remove it, or use another --out')
  source = Source(args.model)
  with _file(source.gin) as path:
    builder = load([path], args.overrides).build().model
  model = jax.eval_shape(lambda: builder(rngs=nnx.Rngs(0)))
  arrays, left = source.arrays(model)

  def write(folder: Path) -> None:
    save_streamed(folder / 'checkpoints', {f'model/{name}': a for name, a in arrays.items()}, {})
    (folder / 'model.gin').write_text(source.gin)
    (folder / 'hub').mkdir()
    for name in (CONFIG, GENERATION):
      if (source.folder / name).exists():
        (folder / 'hub' / name).write_bytes((source.folder / name).read_bytes())
    count = sum(array.size for array in arrays.values())
    print(f'{source.folder}: {source.family.model_type}, {count:,} parameters')
    if left:
      print(f'left out, as {source.fields["architecture"]} has no part for them: {", ".join(left)}')
    with _file(source.gin + _use(source.folder, folder, out, model)) as path:
      (folder / 'config.gin').write_text(config_lib.render(load([path], args.overrides)))

  write_folder(out, write)
  print(f"written to {out}; to start from it: include '{out}/model.gin', InitFrom.run = '{out}'")


def read_folder(folder: Path | str, load: Load) -> Any:
  """The model of a model folder, on this process's first device: what Python code starts from.

  Raises:
    UserError: what `Source` and its `read` refuse.
  """
  import jax
  from flax import nnx

  from t2x.interop import Source

  source = Source(folder)
  with _file(source.gin) as path:
    builder = load([path], []).build().model
  return source.read(jax.eval_shape(lambda: builder(rngs=nnx.Rngs(0))))


@contextlib.contextmanager
def _file(gin: str) -> Iterator[Path]:
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / 'model.gin'
    path.write_text(gin)
    yield path


def _use(theirs: Path, folder: Path, run: Path, model: Any) -> str:
  """Takes the tokenizer along, and gives the gin text of a run that generates."""
  from t2x.data import load_hub_tokenizer
  from t2x.decode.generation_config import strategy_of
  from t2x.models import Decoder

  try:
    tokenizer = load_hub_tokenizer(theirs)
  except UserError as error:
    print(f'no tokenizer: {error}')
    return ''
  tokenizer.save(folder / 'tokenizer')
  print(f'tokenizer of {tokenizer.vocab_size:,} ids')
  if hasattr(model, 'encoder'):
    task, lengths = 'Translation', ['source_length', 'target_length']
  elif isinstance(getattr(model, 'body', None), Decoder):
    task, lengths = 'CausalLM', ['length']
  else:
    return ''
  strategy, left = strategy_of(_known(theirs / GENERATION))
  if left:
    print(f'left out of {GENERATION}: {", ".join(left)}')
  length = min(LENGTH, model.max_length or LENGTH)
  return USE.format(
    task=task,
    lengths='\n'.join(f'  {name} = {length}' for name in lengths),
    run=str(run),
    vocab_size=tokenizer.vocab_size,
    strategy=config_lib.gin_of(f'{task}.strategy', strategy),
  )


def _known(path: Path) -> dict[str, Any]:
  """What a JSON file says; nothing where there is none."""
  return json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}


def export_run(run: Path, to: Path, load: Load, which: Any, model_type: str | None) -> None:
  """A run's model -> a folder that transformers loads."""
  import jax
  import numpy as np
  from flax import nnx

  from t2x.arrays import named_leaves
  from t2x.data import load_tokenizer
  from t2x.data.folders import write_folder
  from t2x.interop import export
  from t2x.train.checkpoints import Checkpoints

  if to.exists() and (not to.is_dir() or any(to.iterdir())):
    raise UserError(f'{to} is there already: remove it, or use another --to')
  experiment = load([run / 'config.gin'], []).build()
  if experiment.model is None:
    raise UserError(f'{run}/config.gin has no Experiment.model')
  model = jax.eval_shape(lambda: experiment.model(rngs=nnx.Rngs(0)))
  shapes = dict(named_leaves(model))
  checkpoints = Checkpoints(run / 'checkpoints')
  step = checkpoints.intact_step(which)
  names = checkpoints.about(step)['arrays']
  prefix = 'ema/' if any(name.startswith('ema/') for name in names) else 'model/'

  def array(name: str) -> np.ndarray:
    return np.asarray(checkpoints.read(step, {prefix + name: shapes[name]})[prefix + name])

  def build(gin: str) -> Any:
    with _file(gin) as path:
      return load([path], []).build().model

  def write(folder: Path) -> None:
    extra, generation = (_known(run / 'hub' / name) for name in (CONFIG, GENERATION))
    if generation:
      (folder / GENERATION).write_text(json.dumps(generation, indent=2) + '\n')
    tokenizer = load_tokenizer(run / 'tokenizer') if (run / 'tokenizer').exists() else None
    if tokenizer is not None:
      ids = {name: getattr(tokenizer, name) for name in ('bos_id', 'eos_id', 'pad_id')}
      extra = {name.replace('_id', '_token_id'): value for name, value in ids.items()} | extra
    family = export(model, build, folder, array, model_type, extra)
    print(f'{run}, step {step}: {family.model_type}')
    if tokenizer is not None:
      try:
        for name, contents in tokenizer.hub_files().items():
          (folder / name).write_bytes(contents)
      except UserError as error:
        print(f'no tokenizer written: {error}')

  write_folder(to, write)
  print(f'written to {to}')
