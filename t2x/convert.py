"""`t2x convert`: Hugging Face folders to run folders, and back."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from t2x import config as config_lib
from t2x.api import read_config, read_experiment
from t2x.errors import UserError
from t2x.external_files import SMALL, Fields, Ids, Object, printed, read_bytes, read_json

# What lets an imported model generate, where it came with a tokenizer.
USE = """
Experiment.task = @{task}()
{lengths}
{strategy}
"""
# Tokens that the rows of such a run would have.
LENGTH = 512

# What a run folder keeps of theirs, in hub/, for what our parts do not say.
CONFIG, GENERATION = 'config.json', 'generation_config.json'


def import_folder(model: Path | str, out: Path, overrides: Sequence[str] = ()) -> None:
  """Writes a run folder for a model folder, whole or not at all: config.gin and model.gin of our parts, a
  checkpoint of step 0, and the tokenizer if there is one.

  Args:
    model: the folder, or a .safetensors file in it.
    out: the run folder.
    overrides: `NAME=VALUE` each, over the config that is derived from config.json.
  """
  from t2x.data.prepared_folders import write_folder
  from t2x.interop.streaming import save_streamed

  _check_free(out, '--out')
  theirs = ModelFolder(model, overrides)
  source, tokenizer, notes = theirs.source, theirs.tokenizer, theirs.notes
  arrays, left = source.arrays(theirs.shapes)
  count = sum(array.size for array in arrays.values())
  notes.insert(0, f'{source.folder}: {source.family.model_type}, {count:,} parameters')
  if left:
    names = ', '.join(map(printed, left))
    notes.insert(1, f'left out, as {source.fields["architecture"]} has no part for them: {names}')
  # All that may be refused is read before the weights are copied.
  rendered = config_lib.render(theirs.config)
  kept = {name: source.folder / name for name in (CONFIG, GENERATION)}
  hub = {name: read_bytes(path, SMALL) for name, path in kept.items() if path.exists()}

  def write(folder: Path) -> None:
    save_streamed(folder / 'checkpoints', {f'params.{name}': a for name, a in arrays.items()}, {})
    (folder / 'model.gin').write_text(source.gin)
    (folder / 'config.gin').write_text(rendered)
    (folder / 'hub').mkdir()
    for name, contents in hub.items():
      (folder / 'hub' / name).write_bytes(contents)
    if tokenizer:
      tokenizer.save(folder / 'tokenizer')

  write_folder(out, write)
  print('\n'.join(notes))
  print(f"written to {out}; to start from it: include '{out}/model.gin', InitFrom.run = '{out}'")


def _check_free(folder: Path, flag: str) -> None:
  """Raises UserError unless the folder is missing or empty."""
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise UserError(f'{folder} is there already: remove it, or use another {flag}')


class ModelFolder:
  """A Hugging Face model folder as our parts; no weights are read.

  Args:
    path: the folder, or a .safetensors file in it.
    overrides: `NAME=VALUE` each, over the config that is derived from config.json.

  Attributes:
    source: the files.
    shapes: of the model.
    tokenizer: None if the folder has none that t2x reads.
    config: the model, and a task if it generates.
    notes: what was left out, for the user.

  Raises:
    UserError: what `HFModel` refuses.
  """

  def __init__(self, path: Path | str, overrides: Sequence[str] = ()):
    from t2x.interop import HFModel

    self.source = source = HFModel(path)
    self.notes: list[str] = []
    generated = config_lib.GinText(source.gin, str(source.config))
    build: Any = read_experiment([generated], overrides).complete_model()
    self.shapes = source.shapes(build)
    self.tokenizer = _tokenizer(source.folder, self.notes)
    use = ''
    if self.tokenizer is not None:
      use = _use(source.folder, self.shapes, self.tokenizer, self.notes)
    files = [generated, config_lib.GinText(use, str(source.folder))]
    self.config = read_config(files, overrides)


def _tokenizer(folder: Path, notes: list[str]) -> Any:
  """The tokenizer of a model folder; None where there is none that is read here."""
  from t2x.data import load_hub_tokenizer
  from t2x.data.tokenizers.special_tokens import Unsupported

  try:
    tokenizer = load_hub_tokenizer(folder)
  except Unsupported as error:
    notes.append(f'no tokenizer: {error}')
    return None
  notes.append(f'tokenizer of {tokenizer.vocab_size:,} ids')
  return tokenizer


def _use(theirs: Path, model: Any, tokenizer: Any, notes: list[str]) -> str:
  """The gin text of a run that generates; empty for models that do not."""
  from t2x.decode.generation_config import strategy_of

  spec = model.spec
  if spec.inputs == 'a source and a target':
    task = 'Translation'
    lengths = {'source_length': spec.max_source_length, 'target_length': spec.max_length}
  elif 'token logits' in spec.outputs and spec.is_causal(LENGTH):
    task, lengths = 'CausalLM', {'length': spec.max_length}
  else:
    return ''
  given = {'eos_token_id': _eos_ids(theirs, spec.vocab_size)} | _known(theirs / GENERATION)
  strategy, left = strategy_of(
    given,
    eos_id=tokenizer.eos_id,
    vocab_size=spec.vocab_size,
    where=str(theirs / GENERATION),
  )
  if left:
    notes.append(f'left out of {GENERATION}: {", ".join(left)}')
  return USE.format(
    task=task,
    lengths='\n'.join(
      f'{task}.{name} = {min(LENGTH, most or LENGTH)}' for name, most in lengths.items()
    ),
    strategy=config_lib.gin_of(f'{task}.strategy', strategy),
  )


def _eos_ids(folder: Path, vocab_size: int) -> list[int]:
  """The end tokens that config.json names, which generation_config.json may leave to it."""
  path = folder / CONFIG
  declared = {'eos_token_id': Ids([], vocab_size)}
  given = {name: value for name, value in _known(path).items() if value is not None}
  return list(Fields(given, declared, str(path))['eos_token_id'])


def _known(path: Path) -> dict[str, Any]:
  """The object in a JSON file; empty where there is no file."""
  return read_json(path) if path.exists() else {}


def export_run(
  run: Path, to: Path, which: Literal['best', 'last'] | int, model_type: str | None
) -> None:
  """Writes a run's model as a folder that transformers loads.

  Args:
    run: the run folder.
    to: the new folder.
    which: 'best', 'last' or a step.
    model_type: the family as config.json names it; None: the one that fits.
  """
  import numpy as np

  from t2x.arrays import named_leaves
  from t2x.data import load_tokenizer
  from t2x.data.prepared_folders import write_folder
  from t2x.interop import export
  from t2x.tasks import CausalLM, Translation
  from t2x.train.checkpoints import Checkpoints
  from t2x.train.saved_params import SavedParams

  _check_free(to, '--to')
  tokenizer = load_tokenizer(run / 'tokenizer') if (run / 'tokenizer').exists() else None
  experiment = read_experiment([run / 'config.gin']).bound(tokenizer)
  task = experiment.task
  model = experiment.shapes()
  shapes = dict(named_leaves(model))
  checkpoints = Checkpoints(run / 'checkpoints')
  step = checkpoints.intact_step(which)
  saved = SavedParams(checkpoints, step)

  def array(name: str) -> np.ndarray:
    return np.asarray(saved.read({name: shapes[name]})[name])

  def build(gin: str) -> Any:
    return read_experiment([config_lib.GinText(gin, f'{run}, as another family,')]).model

  def write(folder: Path) -> None:
    extra, generation = (_known(run / 'hub' / name) for name in (CONFIG, GENERATION))
    Fields(extra, {'id2label': Object(None)}, str(run / 'hub' / CONFIG))
    if generation:
      (folder / GENERATION).write_text(json.dumps(generation, indent=2) + '\n')
    if tokenizer is not None:
      ends = list(task.strategy.eos_ids) if isinstance(task, (CausalLM, Translation)) else []
      ids = {'bos': tokenizer.bos_id, 'eos': ends or tokenizer.eos_id, 'pad': tokenizer.pad_id}
      extra = {f'{role}_token_id': value for role, value in ids.items()} | extra
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


def convert_run(run: Path, to: Path) -> None:
  """Copies a run folder with its checkpoints in the format that this version writes.

  Raises:
    UserError: there is nothing to convert, or a checkpoint is damaged.
  """
  import shutil

  from t2x.data.prepared_folders import write_folder
  from t2x.train.checkpoints import FORMAT, Checkpoints

  _check_free(to, '--to')
  checkpoints = Checkpoints(run / 'checkpoints')
  formats = {step: checkpoints.about(step).get('format', 1) for step in checkpoints.steps()}
  if not formats:
    raise UserError(f'{run} has no checkpoint: there is nothing to convert')
  if set(formats.values()) != {1}:
    raise UserError(f'{run} has run format {max(formats.values())}, and only 1 can be converted')

  def write(folder: Path) -> None:
    ignored = shutil.ignore_patterns('checkpoints', '.lock')
    shutil.copytree(run, folder, ignore=ignored, dirs_exist_ok=True)
    for step in formats:
      _convert_checkpoint(checkpoints, step, folder / 'checkpoints')

  write_folder(to, write)
  steps = ', '.join(map(str, sorted(formats)))
  print(f'written to {to} in run format {FORMAT}: the checkpoints of steps {steps}')


def _convert_checkpoint(checkpoints: Any, step: int, to: Path) -> None:
  """Writes one checkpoint of format 1: nested dicts, parameters under `model`."""
  import jax
  import orbax.checkpoint as ocp
  from etils import epath

  from t2x.arrays import named_leaves
  from t2x.files import damage_of, write_checksums
  from t2x.train.checkpoints import FORMAT, target_of
  from t2x.train.retention import METRICS

  old, new = checkpoints.folder / str(step), to / str(step)
  if (damage := damage_of(old)) is not None:
    raise UserError(f'{old} is corrupt ({damage}): remove it, then convert the others')
  reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
  saved = ocp.PyTreeCheckpointHandler().metadata(epath.Path(old / 'state'))
  target = jax.tree.map(
    lambda one: target_of(jax.ShapeDtypeStruct(one.shape, one.dtype)), saved.tree
  )
  restored = reader.restore(old, args=ocp.args.Composite(state=ocp.args.StandardRestore(target)))
  state = {_new_name(name): leaf for name, leaf in named_leaves(restored.state)}
  about = checkpoints.about(step)
  about['arrays'] = {_new_name(name): shape for name, shape in about['arrays'].items()}
  about['format'] = FORMAT
  args = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about))
  with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as writer:
    writer.save(new, args=args)
  write_checksums(new)
  # Written after the checksums in every run.
  if (old / METRICS).exists():
    (new / METRICS).parent.mkdir(exist_ok=True)
    (new / METRICS).write_bytes((old / METRICS).read_bytes())


def _new_name(name: str) -> str:
  """The name of an array of format 1 in format 2."""
  parts = name.replace('/', '.').split('.')
  return '.'.join(['params', *parts[1:]] if parts[0] == 'model' else parts)
