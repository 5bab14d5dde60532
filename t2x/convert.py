"""`t2x convert`: Hugging Face folders to run folders, and back."""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from t2x import config as config_lib
from t2x.errors import UserError

__all__ = ['export_run', 'import_folder']

Load = Callable[[Sequence[str | Path], Sequence[str]], config_lib.Config]

# Their config.json, kept beside the run's own config for what our parts do not say.
THEIRS = 'hub_config.json'


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
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / f'{source.family.model_type}.gin'
    path.write_text(source.gin)
    config = load([path], args.overrides)

  def write(folder: Path) -> None:
    builder = config.build().model
    arrays, left = source.arrays(jax.eval_shape(lambda: builder(rngs=nnx.Rngs(0))))
    save_streamed(folder / 'checkpoints', {f'model/{name}': a for name, a in arrays.items()}, {})
    (folder / 'model.gin').write_text(source.gin)
    (folder / 'config.gin').write_text(config_lib.render(config))
    (folder / THEIRS).write_bytes((source.folder / 'config.json').read_bytes())
    print(
      f'{source.folder}: {source.family.model_type}, {sum(a.size for a in arrays.values()):,} parameters'
    )
    if left:
      print(f'left out, as {source.fields["architecture"]} has no part for them: {", ".join(left)}')
    print(_tokenizer(source.folder, folder / 'tokenizer'))

  write_folder(out, write)
  print(f"written to {out}; to start from it: include '{out}/model.gin', InitFrom.run = '{out}'")


def _tokenizer(theirs: Path, ours: Path) -> str:
  """Takes the tokenizer along. Returns a line that says so."""
  from t2x.data import load_hub_tokenizer

  try:
    tokenizer = load_hub_tokenizer(theirs)
  except UserError as error:
    return f'no tokenizer: {error}'
  tokenizer.save(ours)
  return f'tokenizer of {tokenizer.vocab_size:,} ids'


def export_run(run: Path, to: Path, load: Load, which: Any, model_type: str | None) -> None:
  """A run's model -> a folder that transformers loads."""
  import jax
  import numpy as np
  from flax import nnx

  from t2x.data import load_tokenizer
  from t2x.data.folders import write_folder
  from t2x.interop import export
  from t2x.train.checkpoints import Checkpoints, named_leaves

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
    with tempfile.TemporaryDirectory() as folder:
      path = Path(folder) / 'model.gin'
      path.write_text(gin)
      return load([path], []).build().model

  def write(folder: Path) -> None:
    kept = run / THEIRS
    extra = json.loads(kept.read_text()) if kept.exists() else {}
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
