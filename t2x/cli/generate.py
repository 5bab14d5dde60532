"""The command `t2x generate`."""

import argparse
import csv
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from t2x.base.errors import UserError, printable
from t2x.base.files import check_output_file, output_file
from t2x.cli.options import (
  add_checkpoint,
  add_json,
  add_processes,
  count,
  finite,
  fraction,
  join,
  natural,
  refuse,
  run_folder,
  score_scale,
  seed,
)
from t2x.cli.prompts import Prompt, prompts_from_texts, read_prompts

if TYPE_CHECKING:
  from t2x.loaded import Loaded

HELP = 'use a run to continue, translate or classify texts, images or recordings, or to fill masks'
TAKES_BINDINGS = True

MAX_NEW_TOKENS = 128

# Options without effect where masks are filled.
_OF_COMPLETIONS = (
  *(
    'max_new_tokens',
    'num_return',
    'seed',
    'greedy',
    'beam',
    'length_penalty',
    'average_length',
    'stop',
  ),
  *('temperature', 'top_p', 'repetition_penalty', 'no_repeat_ngram', 'min_new_tokens', 'suppress'),
)


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.description = (
    'Continues, translates or classifies prompts. A MaskedLM run ranks the tokens for each <mask> in a prompt: '
    "t2x generate RUN --prompt 'imp<mask> os' --top-k 5."
  )
  add_checkpoint(parser)
  add_json(parser)
  add_processes(parser)
  parser.add_argument(
    '--prompt',
    metavar='TEXT',
    action='append',
    help='prompt: a text, or the path of an image or audio recording; repeatable',
  )
  parser.add_argument(
    '--input',
    metavar='FILE',
    help='prompts: the lines of a .txt or .tsv file, JSON lines {"prompt": "..."}, or a folder of '
    'images or audio recordings',
  )
  parser.add_argument(
    '--output',
    metavar='FILE',
    help='output file, with results in prompt order: .csv, .txt (one line of text per prompt), or JSON lines',
  )
  parser.add_argument(
    '--max-new-tokens',
    type=count,
    metavar='N',
    help=f'maximum number of generated tokens per completion (default: {MAX_NEW_TOKENS})',
  )
  parser.add_argument(
    '--num-return', type=count, metavar='N', help='completions per prompt (default: 1)'
  )
  _add_strategy(parser)
  parser.add_argument('--seed', type=seed, metavar='N', help='random seed of sampling (default: 0)')
  parser.add_argument(
    '--batch-size', type=count, default=32, metavar='N', help='prompts per batch (default: 32)'
  )


def _add_strategy(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group(
    "decoding strategy (default: the task's if it has one, else greedy)"
  )
  group.add_argument('--greedy', action='store_true', help='greedy decoding')
  group.add_argument('--beam', type=count, metavar='WIDTH', help='beam search with this beam width')
  penalty = group.add_mutually_exclusive_group()
  penalty.add_argument(
    '--length-penalty',
    type=finite,
    metavar='ALPHA',
    help='beam search: divide scores by ((5 + length) / 6) ** ALPHA (default: 0.6)',
  )
  penalty.add_argument(
    '--average-length',
    type=finite,
    metavar='POWER',
    help="beam search: divide scores by length ** POWER (same as Hugging Face's length_penalty)",
  )
  group.add_argument(
    '--stop',
    choices=('certain', 'current-length', 'full'),
    help="beam search: stopping criterion, with Hugging Face's early_stopping in brackets: certain ('never'), "
    'current-length (False), full (True) (default: certain)',
  )
  group.add_argument('--temperature', type=score_scale, metavar='T', help='sampling temperature')
  group.add_argument(
    '--top-k',
    type=count,
    metavar='K',
    help='sample from the K most likely tokens; with a MaskedLM run: number of tokens per mask (default: 5)',
  )
  group.add_argument(
    '--top-p', type=fraction, metavar='P', help='nucleus sampling with probability mass P'
  )
  penalty_help = 'values above 1 make previous tokens less likely'
  group.add_argument('--repetition-penalty', type=score_scale, metavar='P', help=penalty_help)
  group.add_argument('--no-repeat-ngram', type=count, metavar='N', help='forbid repeated N-grams')
  group.add_argument(
    '--min-new-tokens',
    type=count,
    metavar='N',
    help='minimum number of generated tokens per completion',
  )
  group.add_argument(
    '--suppress',
    type=natural,
    action='append',
    metavar='ID',
    help='token id that is never generated; repeatable',
  )


def run(args: argparse.Namespace) -> int:
  """Writes completions of prompts to stdout or a file."""
  prompts = _prompts(args)
  if args.json and args.output:
    raise UserError('--json has no effect with --output, which writes JSON lines: remove it')
  at_most = args.max_new_tokens or MAX_NEW_TOKENS
  if (args.min_new_tokens or 0) > at_most:
    raise UserError(
      f'--min-new-tokens {args.min_new_tokens} is more than --max-new-tokens {at_most}'
    )
  if args.output:
    check_output_file('--output', Path(args.output))
  from t2x.api import load

  folder = run_folder(args.run)
  loaded = load(folder, checkpoint=args.checkpoint, overrides=args.overrides, processes=join(args))
  if args.input and os.path.isdir(args.input) and loaded.task.prompts != 'files':
    raise UserError(f'--input {args.input} is a folder, but the run reads texts: pass a file')
  for where, prompt in prompts:
    try:
      loaded.task.check_prompt(prompt)
    except UserError as error:
      raise UserError(f'{where}: {error}') from error
  answers = _answers(args, loaded, [prompt for _, prompt in prompts])
  if not args.processes.first:
    # All processes compute the completions; the first process writes them.
    for _ in answers:
      pass
    return 0
  if args.output:
    with output_file('--output', Path(args.output)) as file:
      _write(answers, args.output, file)
    print(f'wrote {args.output}', file=sys.stderr)
    return 0
  for answer in answers:
    if args.json:
      print(json.dumps(answer, ensure_ascii=False), flush=True)
      continue
    for completion in _completions(answer):
      share = f'  ({completion["probability"]:.3f})' if 'probability' in completion else ''
      print(f'{answer["prompt"]!r} -> {completion["text"]}{share}')
    for number, tokens in enumerate(answer.get('masks', []), 1):
      print(f'  mask {number}:')
      for token in tokens:
        print(f'    {token["probability"]:.4f}  {printable(token["token"])}')
  return 0


def _completions(answer: dict[str, Any]) -> list[dict[str, Any]]:
  return [answer, *answer.get('others', [])]


def _write(answers: Iterator[dict[str, Any]], path: str, file: IO[str]) -> None:
  """Writes completions in the format given by the ending of the file name."""
  if path.endswith('.csv'):
    columns = ['prompt', 'text', 'score', 'probability']
    writer = csv.DictWriter(file, columns, extrasaction='ignore', lineterminator='\n')
    writer.writeheader()
    for answer in answers:
      writer.writerows({'prompt': answer['prompt']} | c for c in _completions(answer))
    return
  for answer in answers:
    if path.endswith('.txt'):
      # One line per prompt, as scores of translations need.
      print(' '.join(answer['text'].splitlines()), file=file)
    else:
      print(json.dumps(answer, ensure_ascii=False), file=file)


def _prompts(args: argparse.Namespace) -> list[Prompt]:
  if bool(args.prompt) == bool(args.input):
    raise UserError('generate needs either --prompt TEXT or --input FILE')
  return prompts_from_texts(args.prompt) if args.prompt else read_prompts(args.input)


def _answers(
  args: argparse.Namespace, loaded: 'Loaded', prompts: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields the completions of the prompts in order, batch by batch."""
  batches = range(0, len(prompts), args.batch_size)
  if loaded.fills_masks:
    refuse(args, 'has no effect on a masked language model', *_OF_COMPLETIONS)
    for start in batches:
      yield from loaded.fill_masks(prompts[start : start + args.batch_size], top_k=args.top_k or 5)
    return
  strategy = decoding_strategy(args, loaded.task)
  for start in batches:
    yield from loaded.generate(
      prompts[start : start + args.batch_size],
      strategy=strategy,
      max_new_tokens=args.max_new_tokens or MAX_NEW_TOKENS,
      num_return=args.num_return or 1,
      # A sample depends on the number of its prompt, not on its batch.
      seed=(args.seed or 0, start) if start else args.seed or 0,
    )


def decoding_strategy(args: argparse.Namespace, task: Any) -> Any:
  """Returns the task's decoding strategy, or greedy decoding, with the options of the command line."""
  from t2x import decode

  own = task.default_strategy
  beam = {name: value for name, value in _beam(args).items() if value is not None}
  sampling = {
    name: value
    for name in ('temperature', 'top_k', 'top_p')
    if (value := getattr(args, name)) is not None
  }
  if bool(beam) + bool(sampling) + args.greedy > 1:
    raise UserError('--greedy, beam search and --temperature, --top-k, --top-p exclude each other')
  strategy = own
  if beam and 'width' not in beam and not isinstance(own, decode.Beam):
    raise UserError('--length-penalty, --average-length and --stop need --beam WIDTH')
  if args.greedy:
    strategy = decode.Greedy()
  # Settings of the task's strategy that no option sets stay.
  for settings, kind in ((sampling, decode.Sampling), (beam, decode.Beam)):
    if settings:
      strategy = dataclasses.replace(own if isinstance(own, kind) else kind(), **settings)
  # The task's constraints, such as a first token or the end tokens, apply to every strategy.
  new = _processors(args, own)
  inherited = [old for old in own.processors if type(old) not in map(type, new)]
  return dataclasses.replace(strategy, processors=(*inherited, *new), eos_ids=own.eos_ids)


def _beam(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the settings of beam search; None for options that are not set."""
  from t2x import decode

  stopping = {
    'certain': decode.WhenCertain(),
    'current-length': decode.AtCurrentLength(),
    'full': decode.WhenFull(),
  }
  penalty: decode.LengthPenalty | None = None
  if args.length_penalty is not None:
    penalty = decode.GNMT(args.length_penalty)
  if args.average_length is not None:
    penalty = decode.AverageLength(args.average_length)
  return {'width': args.beam, 'length_penalty': penalty, 'stopping': stopping.get(args.stop)}


def _processors(args: argparse.Namespace, own: Any) -> list[Any]:
  """Returns the logits processors in the order of application; suppressed tokens are added to those of the task."""
  from t2x import decode

  if args.suppress is not None:
    old = [p.tokens for p in own.processors if isinstance(p, decode.SuppressTokens)]
    args.suppress = [*dict.fromkeys([*itertools.chain(*old), *args.suppress])]
  values = {
    decode.RepetitionPenalty: args.repetition_penalty,
    decode.NoRepeatNGram: args.no_repeat_ngram,
    decode.MinNewTokens: args.min_new_tokens,
    decode.SuppressTokens: args.suppress,
  }
  return [build(value) for build, value in values.items() if value is not None]
