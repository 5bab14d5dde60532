"""Conversion between Hugging Face model folders and run folders, and of old run folders: `t2x convert`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from t2x import config as config_lib
from t2x.base.errors import UserError
from t2x.base.external_files import Fields, Ids, Object, printed, read_bytes, read_json
from t2x.base.files import check_new_folder
from t2x.experiments import read_config, read_experiment
from t2x.interop.task_files import task_files

if TYPE_CHECKING:
  from t2x.data import Tokenizer
  from t2x.train import Experiment
  from t2x.train.checkpoints.store import Checkpoints

# Config of generation for an imported model with a tokenizer.
USE = """
Experiment.task = @{task}()
{lengths}
{strategy}
"""
# Row length of its task, in tokens.
LENGTH = 512

CONFIG, GENERATION = 'config.json', 'generation_config.json'
# Files of the tokenizer, with its chat template, and of the preparation of images and audio.
TOKENIZER = (
  *('tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json'),
  *('chat_template.jinja', 'chat_template.json', 'vocab.json', 'vocab.txt', 'merges.txt'),
  *('spiece.model', 'tokenizer.model', 'source.spm', 'target.spm'),
)
# Folder of tensors without effect in t2x.
KEPT = 'kept'
PROCESSOR = ('preprocessor_config.json', 'processor_config.json')
# Files of the model folder that the run folder keeps in hub/, for what has no equivalent in t2x. Runs that are
# initialised from it copy them.
HUB = (CONFIG, GENERATION, *TOKENIZER, *PROCESSOR)


def import_folder(model: Path | str, out: Path, overrides: Sequence[str] = ()) -> None:
  """Converts a Hugging Face model folder to a run folder.

  Atomically writes config.gin, model.gin, a checkpoint of step 0, and the tokenizer if there is one.

  Args:
    model: the model folder, or a .safetensors file in it.
    out: the new run folder.
    overrides: `NAME=VALUE` each; they override the config that is derived from config.json.
  """
  import numpy as np

  from t2x.data.prepared_folders import write_folder
  from t2x.interop.safetensors import write_tensors
  from t2x.interop.streaming import save_streamed

  check_new_folder('--out', out)
  imported = ModelFolder(model, overrides)
  source, tokenizer, notes = imported.source, imported.tokenizer, imported.notes
  arrays, unused = source.arrays(imported.shapes)
  count = sum(array.size for array in arrays.values())
  notes.insert(0, f'{source.folder}: {source.family.model_type}, {count:,} parameters')
  if unused:
    names = ', '.join(map(printed, unused))
    notes.insert(1, f'ignored tensors, which {source.fields["architecture"]} does not use: {names}')
  # Everything that may be invalid is read before the weights are copied.
  rendered = config_lib.render(imported.config)
  hub = _files(source.folder, HUB)

  def write(folder: Path) -> None:
    save_streamed(folder / 'checkpoints', {f'params.{name}': a for name, a in arrays.items()}, {})
    (folder / 'model.gin').write_text(source.gin)
    (folder / 'config.gin').write_text(rendered)
    (folder / 'hub').mkdir()
    for name, contents in hub.items():
      (folder / 'hub' / name).write_bytes(contents)
    if kept := source.kept:
      specs = {name: (tensor.shape, tensor.dtype) for name, tensor in kept.items()}
      write_tensors(folder / 'hub' / KEPT, specs, lambda name: np.asarray(kept[name]))
    if tokenizer:
      tokenizer.save(folder / 'tokenizer')

  write_folder(out, write)
  print('\n'.join(notes))
  print(f"wrote {out}; to initialise from it: include '{out}/model.gin', InitFrom.run = '{out}'")


class ModelFolder:
  """A Hugging Face model folder as a t2x config, without its weights.

  Args:
    path: the model folder, or a .safetensors file in it.
    overrides: `NAME=VALUE` each; they override the config that is derived from config.json.

  Attributes:
    source: the files.
    shapes: the model with abstract parameters.
    tokenizer: the tokenizer; None if the folder has no supported one.
    config: the model, and a task if the model generates text or fills masks.
    notes: remarks for the user, such as ignored settings.

  Raises:
    UserError: the folder is invalid or not supported, see `HFModel`.
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
      use = _generation_gin(source.folder, self.shapes, self.tokenizer, self.notes)
    files = [generated, config_lib.GinText(use, str(source.folder))]
    self.config = read_config(files, overrides)


def _tokenizer(folder: Path, notes: list[str]) -> Any:
  """Loads the tokenizer of a model folder; returns None if it has no supported one."""
  from t2x.data import load_hub_tokenizer
  from t2x.data.tokenizers.special_tokens import Unsupported

  try:
    tokenizer = load_hub_tokenizer(folder)
  except Unsupported as error:
    notes.append(f'no tokenizer: {error}')
    return None
  notes.append(f'tokenizer with {tokenizer.vocab_size:,} tokens')
  return tokenizer


def _generation_gin(folder: Path, model: Any, tokenizer: 'Tokenizer', notes: list[str]) -> str:
  """Returns the gin text of a task and its decoding strategy; '' for models that neither generate text nor fill
  masks."""
  from t2x.decode.generation_config import strategy_of

  spec, more = model.spec, ''
  fields = {'eos_token_id': _eos_ids(folder, spec.vocab_size)} | _read_json(folder / GENERATION)
  files = next((one for one in task_files() if one.kind == spec.first.kind), None)
  if spec.is_encoder_decoder and files is not None:
    task, lengths = files.task.__name__, {'target_length': spec.max_length}
    forced = _read_json(folder / CONFIG) | {k: v for k, v in fields.items() if v is not None}
    more = files.settings(folder, model, tokenizer, forced, notes)
    fields.pop('forced_decoder_ids', None)
  elif spec.is_encoder_decoder:
    task = 'Translation'
    lengths = {'source_length': spec.first.max_length, 'target_length': spec.max_length}
  elif 'token logits' in spec.outputs and spec.is_causal(LENGTH):
    task, lengths = 'CausalLM', {'length': spec.max_length}
  elif 'token logits' in spec.outputs and tokenizer.mask_id is not None:
    length = min(LENGTH, spec.max_length or LENGTH)
    return f'Experiment.task = @MaskedLM()\nMaskedLM.length = {length}\n'
  else:
    return ''
  strategy, unused = strategy_of(
    fields,
    eos_id=tokenizer.eos_id,
    vocab_size=spec.vocab_size,
    where=str(folder / GENERATION),
  )
  if unused:
    notes.append(f'ignored in {GENERATION}: {", ".join(unused)}')
  return more + USE.format(
    task=task,
    lengths='\n'.join(
      f'{task}.{name} = {min(LENGTH, max_length or LENGTH)}' for name, max_length in lengths.items()
    ),
    strategy=config_lib.gin_of(f'{task}.strategy', strategy),
  )


def _files(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
  """Returns the contents of the files that a folder has."""
  return {name: read_bytes(folder / name) for name in names if (folder / name).exists()}


def _eos_ids(folder: Path, vocab_size: int) -> list[int]:
  """Returns the end tokens in config.json, the defaults for generation_config.json."""
  path = folder / CONFIG
  declared = {'eos_token_id': Ids([], vocab_size)}
  values = {name: value for name, value in _read_json(path).items() if value is not None}
  return list(Fields(values, declared, str(path))['eos_token_id'])


def _read_json(path: Path) -> dict[str, Any]:
  """Reads the object in a JSON file; {} if the file does not exist."""
  return read_json(path) if path.exists() else {}


def export_run(
  run: Path, to: Path, which: Literal['best', 'last'] | int, model_type: str | None
) -> None:
  """Converts the model of a run to a Hugging Face model folder.

  Args:
    run: the run folder.
    to: the new model folder.
    which: the checkpoint: 'best', 'last' or a step.
    model_type: `model_type` in config.json; None: the first family that supports the model.
  """
  import numpy as np

  from t2x.data import load_tokenizer
  from t2x.data.prepared_folders import write_folder
  from t2x.interop import export
  from t2x.interop.safetensors import read_tensors
  from t2x.layers.arrays import named_leaves
  from t2x.train.checkpoints.saved_params import SavedParams
  from t2x.train.checkpoints.store import Checkpoints

  check_new_folder('--to', to)
  tokenizer = load_tokenizer(run / 'tokenizer') if (run / 'tokenizer').exists() else None
  experiment = read_experiment([run / 'config.gin']).bound(tokenizer)
  task = experiment.task
  model = experiment.shapes()
  _check_mup(experiment)
  shapes = dict(named_leaves(model))
  checkpoints = Checkpoints(run / 'checkpoints')
  step = checkpoints.intact_step(which)
  saved = SavedParams(checkpoints, step)

  def array(name: str) -> np.ndarray:
    return np.asarray(saved.read({name: shapes[name]})[name])

  def build(gin: str) -> Any:
    return read_experiment([config_lib.GinText(gin, f'{run}, as another family,')]).model

  def write(folder: Path) -> None:
    imported, generation = (_read_json(run / 'hub' / name) for name in (CONFIG, GENERATION))
    extra = dict(imported)
    for files in task_files():
      if isinstance(task, files.task):
        extra |= files.write(task, folder)
    Fields(extra, {'id2label': Object(None)}, str(run / 'hub' / CONFIG))
    if tokenizer is not None:
      keeps = bool(generation) and _keeps_strategy(task, tokenizer, generation)
      ids, fields = _token_fields(task, tokenizer, quiet=keeps)
      extra = extra if imported else ids | extra
      generation = generation if keeps else generation | fields
    if generation:
      (folder / GENERATION).write_text(json.dumps(generation, indent=2) + '\n')
    kept = read_tensors(run / 'hub' / KEPT) if (run / 'hub' / KEPT).exists() else {}
    family = export(model, build, folder, array, model_type, extra, kept)
    print(f'{run}, step {step}: {family.model_type}')
    for name, contents in _files(run / 'hub', PROCESSOR).items():
      (folder / name).write_bytes(contents)
    if tokenizer is not None:
      try:
        for name, contents in _tokenizer_files(run, task, tokenizer).items():
          (folder / name).write_bytes(contents)
      except UserError as error:
        print(f'no tokenizer written: {error}')

  write_folder(to, write)
  print(f'wrote {to}')


def _tokenizer_files(run: Path, task: object, tokenizer: 'Tokenizer') -> dict[str, bytes]:
  """Returns the imported files of the tokenizer, with its chat template, or new ones for another tokenizer."""
  from t2x.data import load_hub_tokenizer
  from t2x.tasks import CausalLM

  files = _files(run / 'hub', TOKENIZER)
  if files and load_hub_tokenizer(run / 'hub').fingerprint == tokenizer.fingerprint:
    return files
  # transformers and vLLM would append the end token of training documents to prompts.
  return (tokenizer.prompts_only() if isinstance(task, CausalLM) else tokenizer).hub_files()


def _check_mup(experiment: 'Experiment') -> None:
  """Raises UserError if logits or embeddings have factors of `MuP`, which other libraries lack."""
  scaling = experiment.scaling()
  if scaling is not None and scaling.width_ratio != 1:
    raise UserError(
      f'Experiment.mup divides the logits of tied heads by {scaling.width_ratio:g}, which no Hugging Face model '
      'does: only runs with the width of MuP.base can be exported'
    )


def _keeps_strategy(task: object, tokenizer: 'Tokenizer', generation: Mapping[str, Any]) -> bool:
  """Returns whether an imported generation_config.json is kept: the task sets no other strategy."""
  from t2x.decode.generation_config import strategy_of

  imported, _ = strategy_of(generation, eos_id=tokenizer.eos_id)
  own = getattr(task, 'strategy', imported)
  return own in (imported, getattr(type(task), 'strategy', None))


def _token_fields(
  task: Any, tokenizer: 'Tokenizer', quiet: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the special ids for config.json, and generation_config.json, {} for tasks that do not generate.

  Prints the settings of the task's strategy that generation_config.json does not have, unless `quiet`.
  """
  from t2x.decode.generation_config import fields_of
  from t2x.tasks import CausalLM, Translation

  generates = isinstance(task, (CausalLM, Translation, *(files.task for files in task_files())))
  strategy = task.strategy if generates else None
  ends = list(strategy.eos_ids) if strategy else []
  roles = {'bos': tokenizer.bos_id, 'eos': ends or tokenizer.eos_id, 'pad': tokenizer.pad_id}
  ids = {f'{role}_token_id': value for role, value in roles.items()}
  if strategy is None:
    return ids, {}
  fields, missing = fields_of(strategy)
  if missing and not quiet:
    print(f'not in {GENERATION}: {", ".join(missing)}')
  return ids, ids | fields


def convert_run(run: Path, to: Path) -> None:
  """Copies a run folder of an older version, with its checkpoints converted to the current format.

  Raises:
    UserError: the run has no checkpoint, has another format, or a checkpoint is damaged.
  """
  import shutil

  from t2x.data.prepared_folders import write_folder
  from t2x.train.checkpoints.store import FORMAT, Checkpoints

  check_new_folder('--to', to)
  if to.resolve().is_relative_to(run.resolve()):
    raise UserError(f'--to {to} is inside {run}, which is copied: use another folder')
  checkpoints = Checkpoints(run / 'checkpoints')
  formats = {step: checkpoints.about(step).get('format', 1) for step in checkpoints.steps()}
  if not formats:
    raise UserError(f'{run} has no checkpoints to convert')
  if set(formats.values()) != {1}:
    raise UserError(f'{run} has run format {max(formats.values())}: only 1 can be converted')

  def write(folder: Path) -> None:
    ignored = shutil.ignore_patterns('checkpoints', '.lock')
    shutil.copytree(run, folder, ignore=ignored, dirs_exist_ok=True)
    for step in formats:
      _convert_checkpoint(checkpoints, step, folder / 'checkpoints')

  write_folder(to, write)
  steps = ', '.join(map(str, sorted(formats)))
  print(f'wrote {to} in run format {FORMAT} with the checkpoints of steps {steps}')


def _convert_checkpoint(checkpoints: 'Checkpoints', step: int, to: Path) -> None:
  """Converts one checkpoint of format 1, which has nested dicts and parameters under `model`."""
  import jax
  import orbax.checkpoint as ocp
  from etils import epath

  from t2x.base.files import find_damage, write_checksums
  from t2x.layers.arrays import named_leaves
  from t2x.train.checkpoints.orbax_files import target_of
  from t2x.train.checkpoints.retention import METRICS
  from t2x.train.checkpoints.store import FORMAT

  old, new = checkpoints.folder / str(step), to / str(step)
  if (damage := find_damage(old)) is not None:
    raise UserError(f'{old} is corrupt ({damage}): remove it to convert the other checkpoints')
  reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
  saved = ocp.PyTreeCheckpointHandler().metadata(epath.Path(old / 'state'))
  target = jax.tree.map(
    lambda leaf: target_of(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)), saved.tree
  )
  restored = reader.restore(old, args=ocp.args.Composite(state=ocp.args.StandardRestore(target)))
  state = {_new_name(name): leaf for name, leaf in named_leaves(restored.state)}
  about = checkpoints.orbax.read_about(old)
  about['arrays'] = {_new_name(name): shape for name, shape in about['arrays'].items()}
  about['format'] = FORMAT
  args = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about))
  with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as writer:
    writer.save(new, args=args)
  write_checksums(new)
  # Training writes the metrics after the checksums, which do not include them.
  if (old / METRICS).exists():
    (new / METRICS).parent.mkdir(exist_ok=True)
    (new / METRICS).write_bytes((old / METRICS).read_bytes())


def _new_name(name: str) -> str:
  """Converts the name of an array from format 1 to format 2."""
  parts = name.replace('/', '.').split('.')
  return '.'.join(['params', *parts[1:]] if parts[0] == 'model' else parts)
