"""The command `t2x look`."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from t2x.base.errors import UserError
from t2x.base.external_files import read_text
from t2x.base.packages import require
from t2x.cli.options import add_checkpoint, count
from t2x.cli.prompts import check_text

if TYPE_CHECKING:
  from t2x.loaded import Loaded
  from t2x.look import Look

HELP = 'draw the attention, predictions and embeddings of a run for one input'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  add_checkpoint(parser)
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument('--prompt', metavar='TEXT', help='input text')
  source.add_argument(
    '--input',
    metavar='FILE',
    help='input file with text, an image or audio; instead of an image or audio file, the index of an example',
  )
  parser.add_argument(
    '--target',
    metavar='TEXT',
    help='target text for an encoder-decoder (default: the text that the run generates)',
  )
  parser.add_argument(
    '--rows',
    type=count,
    metavar='N',
    help='also draw the load of the experts on N rows of the evaluation split (of each task in a mixture of tasks)',
  )
  parser.add_argument(
    '--max-tokens',
    type=count,
    metavar='N',
    help='maximum length in tokens (default: 128; for images: 256)',
  )
  parser.add_argument(
    '--out', metavar='FILE', help='page to write (default: look.html in RUN, or look-2.html, ...)'
  )
  parser.add_argument(
    '--png',
    metavar='FOLDER',
    help='also write the pictures as PNG files (needs matplotlib, which the pip extra `report` installs)',
  )
  parser.add_argument(
    '--svg', metavar='FOLDER', help='also write the pictures as SVG files (needs matplotlib)'
  )


def run(args: argparse.Namespace) -> int:
  """Writes the page and prints its path."""
  from t2x.api import load
  from t2x.base.files import check_folder, check_output_file, output_file, unused_path
  from t2x.look.page import page

  for option in ('prompt', 'target'):
    if (text := getattr(args, option)) is not None:
      check_text(f'--{option}', text)
  run_folder = Path(args.run)
  out = Path(args.out) if args.out else unused_path(run_folder / 'look.html')
  read = [Path(args.input)] if args.input else []
  if args.out or run_folder.is_dir():
    check_output_file('--out', out)
  folders: dict[Literal['png', 'svg'], str | None] = {'png': args.png, 'svg': args.svg}
  for suffix, folder in folders.items():
    if folder is not None:
      require({'matplotlib': (f'--{suffix}',)})
      check_folder(f'--{suffix}', Path(folder))
    if folder is not None and any(Path(folder).resolve() == p.resolve().parent for p in read):
      raise UserError(f'--{suffix} {folder} is the folder of --input: pictures may replace it')
  loaded = load(Path(args.run), checkpoint=args.checkpoint, overrides=args.overrides)
  spec = loaded.model.model.spec
  is_pair = spec.is_encoder_decoder
  if args.target is not None and not is_pair:
    raise UserError('--target has no effect: the model is not an encoder-decoder; remove it')
  facts = {'run': args.run, 'step': str(loaded.step), 'input': args.prompt or args.input}
  settings: dict[str, Any] = {} if args.max_tokens is None else {'max_tokens': args.max_tokens}
  if spec.first.kind == 'ids':
    look = _text(args, loaded, settings, facts, is_pair)
  elif is_pair:
    look = _caption(args, loaded, settings, facts)
  else:
    look = _image(args, loaded, settings, facts)
  if args.rows is not None:
    look = _with_rows(look, loaded, args.rows)
  with output_file('--out', out) as file:
    file.write(page(look, f'Inside {Path(args.run).name}, {_kind(loaded)}', facts))
  print(out)
  for suffix, folder in folders.items():
    if folder is not None:
      from t2x.look.pictures import write_pictures

      for path in write_pictures(look, folder, suffix):
        print(path)
  return 0


def _kind(loaded: 'Loaded') -> str:
  """Returns the kind of a model in words: 'a causal language model'."""
  spec = loaded.model.model.spec
  kinds = {'ids': 'text', 'image': 'images'}
  source = kinds.get(spec.first.kind, spec.first.kind)
  if spec.is_encoder_decoder:
    return f'an encoder-decoder from {source} to text'
  if spec.first.kind == 'ids' and 'token logits' in spec.outputs:
    causal = spec.is_causal(min(spec.max_length or 16, 16))
    return 'a causal language model' if causal else 'an encoder of text that predicts tokens'
  heads = {'boxes': 'detector', 'class logits': 'classifier', 'classes per token': 'tagger'}
  names = [name for output, name in heads.items() if output in spec.outputs]
  return f'a {names[0]} of {source}' if names else f'an encoder of {source}'


def _text(
  args: argparse.Namespace,
  loaded: 'Loaded',
  settings: dict[str, Any],
  facts: dict[str, str],
  is_pair: bool,
) -> 'Look':
  from t2x.look import look_at_pair, look_at_text

  if loaded.tokenizer is None:
    raise UserError(f'{args.run} has no tokenizer, so that it cannot read texts')
  text = args.prompt
  if text is None:
    text = read_text(Path(args.input)).rstrip('\n')
  if not text:
    raise UserError('the text is empty: give one with --prompt or --input')
  if not is_pair:
    return look_at_text(
      loaded.model, loaded.tokenizer, text, classes=_class_names(loaded), **settings
    )
  target = _target(args, lambda: loaded.generate(text)[0], facts)
  return look_at_pair(loaded.model, loaded.tokenizer, text, target, **settings)


def _target(
  args: argparse.Namespace, generate: Callable[[], dict[str, Any]], facts: dict[str, str]
) -> Any:
  """Returns --target, or the tokens that the run generates."""
  if args.target is not None:
    return args.target
  answer = generate()
  facts['output'] = answer['text']
  if not answer['tokens']:
    raise UserError('the run generates an empty output: give a --target')
  return answer['tokens']


def _caption(
  args: argparse.Namespace, loaded: 'Loaded', settings: dict[str, Any], facts: dict[str, str]
) -> 'Look':
  from t2x.look import look_at_pair
  from t2x.tasks import Captions

  task = loaded.task
  if not isinstance(task, Captions) or task.modality.kind not in ('image', 'audio'):
    raise UserError(
      f'look does not draw encoder-decoders whose source is {loaded.model.model.spec.first.kind}, except captions of '
      'images and transcriptions: use t2x.load(RUN).attention'
    )
  if args.input is None:
    raise UserError('a model of images or of sound needs --input FILE_OR_INDEX')
  if args.input.isdigit():
    examples = task.source.load(task.eval_split)
    _check_index(args.input, task.eval_split, examples)
    example = examples[int(args.input)]
  else:
    task.check_prompt(args.input)
    example = {'source': task.modality.read(Path(args.input))}
  prepared = task.modality.prepare(example['source'], None)['source']

  def generate():
    settings = {'strategy': task.default_strategy, 'max_new_tokens': task.answer_length}
    return task.generate(loaded.model, [example], **settings)[0][0]

  target = _target(args, generate, facts)
  if task.modality.kind == 'image':
    settings |= {'pixels': example['source']}
  else:
    modality: Any = task.modality
    settings |= {'seconds': modality.seconds}
  settings |= {'start': [task.fitted.start_id, *task.first_ids(example)]}
  return look_at_pair(loaded.model, loaded.tokenizer, prepared, target, **settings)


def _check_index(index: str, split: str, examples: Sequence[Any]) -> None:
  if int(index) >= len(examples):
    raise UserError(f"--input {index}: '{split}' has {len(examples)} examples, from 0")


def _with_rows(look: 'Look', loaded: 'Loaded', num_rows: int) -> 'Look':
  """Adds the load of the experts for rows of the evaluation split."""
  from t2x.look import load_of_rows

  if not look.loads:
    raise UserError(
      '--rows has no effect: no layer of the model records the load of experts; remove it'
    )
  task, inference = loaded.task, loaded.inference
  rows = {
    name: inference.rows(task.split_of(part, task.eval_split), part)
    for name, part in task.parts.items()
  }
  of_rows = load_of_rows(loaded.model, task, rows, num_rows, inference.batch_size)
  loads = tuple(own.joined(other) for own, other in zip(look.loads, of_rows, strict=True))
  return dataclasses.replace(look, loads=loads)


def _class_names(loaded: 'Loaded') -> Sequence[str]:
  task = loaded.experiment.task
  return () if task is None else task.class_names


def _image(
  args: argparse.Namespace, loaded: 'Loaded', settings: dict[str, Any], facts: dict[str, str]
) -> 'Look':
  import numpy as np

  from t2x.base.names import domain_modules
  from t2x.data.sources.image_folder import read_image
  from t2x.data.sources.rewriting import resized_as
  from t2x.look import look_at_image
  from t2x.look.inputs import Names
  from t2x.tasks import ImageClassification

  task: Any = loaded.task
  domains = domain_modules('look')
  domain = next((module for module in domains if isinstance(task, module.TASK)), None)
  if args.input is None or not (domain or isinstance(task, ImageClassification)):
    names = ' or '.join(['ImageClassification', *(module.TASK.__name__ for module in domains)])
    raise UserError(f'a model of images needs an {names} task and --input FILE_OR_INDEX')
  channels, classes = task.image_shape[-1], task.class_names
  if args.input.isdigit():
    rows = task.rows(task.eval_split)
    _check_index(args.input, task.eval_split, rows)
    row = rows[int(args.input)]
    if 'label' in row:
      facts['label'] = Names(None, classes).label(int(row['label']))
  else:
    image = read_image(Path(args.input), channels)
    row = {'image': resized_as(task.source, image), 'label': 0, 'boxes': [], 'labels': []}
  transform = task.transform(train=False)
  example = row if transform is None else transform(row, np.random.default_rng(0))
  image = example['image']
  if image.shape != task.image_shape:
    raise UserError(
      f'the image is {image.shape}, but the model reads {task.image_shape}: resize it'
    )
  mean, std = (np.asarray(value, np.float32) for value in (task.mean, task.std))
  pixels = np.clip((image * std + mean) * 255, 0, 255).astype(np.uint8)
  label = facts.get('label', '')
  look = look_at_image(loaded.model, image, pixels, label=label, classes=classes, **settings)
  if domain is None:
    return look
  drawings = domain.drawings(loaded.model, task, example, pixels, Names(None, classes).label)
  return dataclasses.replace(look, drawings=drawings)
