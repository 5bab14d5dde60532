"""`t2x generate`."""

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from t2x.cli.options import (
  add_checkpoint,
  add_json,
  add_processes,
  count,
  finite,
  fraction,
  join,
  natural,
  positive,
  run_folder,
  seed,
)
from t2x.cli.prompts import Prompt, check_output, output_file, read_prompts, told_prompts
from t2x.errors import UserError

if TYPE_CHECKING:
  from t2x.loaded import Loaded

HELP = 'continue, translate or classify texts with a run'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  add_checkpoint(parser)
  add_json(parser)
  add_processes(parser)
  parser.add_argument('--prompt', action='append', help='text to continue or translate; repeatable')
  parser.add_argument('--input', metavar='FILE', help='JSON lines with a "prompt" each')
  parser.add_argument('--output', metavar='FILE', help='JSON lines, in the same order')
  parser.add_argument('--max-new-tokens', type=count, default=128, metavar='N')
  parser.add_argument(
    '--num-return', type=count, default=1, metavar='N', help='completions per prompt'
  )
  _add_strategy(parser)
  parser.add_argument('--seed', type=seed, default=0, help='of sampling')
  parser.add_argument('--batch-size', type=count, default=32, metavar='N', help='prompts at once')


def _add_strategy(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group('how the next token is chosen (default: as the task says)')
  group.add_argument('--greedy', action='store_true', help='the likeliest token at each step')
  group.add_argument('--beam', type=count, metavar='WIDTH', help='beam search')
  penalty = group.add_mutually_exclusive_group()
  penalty.add_argument(
    '--length-penalty',
    type=finite,
    metavar='ALPHA',
    help='of the beam: scores are divided by ((5 + length) / 6) ** ALPHA (default: 0.6)',
  )
  penalty.add_argument(
    '--average-length',
    type=finite,
    metavar='POWER',
    help="of the beam: scores are divided by length ** POWER, Hugging Face's length_penalty",
  )
  group.add_argument(
    '--stop',
    choices=('certain', 'current-length', 'full'),
    help="when a beam search is done: Hugging Face's early_stopping never, False or True "
    '(default: certain)',
  )
  group.add_argument('--temperature', type=positive, metavar='T', help='sample at this temperature')
  group.add_argument('--top-k', type=count, metavar='K', help='sample from the K likeliest tokens')
  group.add_argument(
    '--top-p', type=fraction, metavar='P', help='sample from the nucleus of mass P'
  )
  likely = 'above 1: tokens seen before are less likely'
  group.add_argument('--repetition-penalty', type=positive, metavar='P', help=likely)
  group.add_argument(
    '--no-repeat-ngram', type=count, metavar='N', help='no N tokens in a row stand twice'
  )
  group.add_argument(
    '--min-new-tokens', type=count, metavar='N', help='that an answer has at least'
  )
  group.add_argument(
    '--suppress', type=natural, action='append', metavar='ID', help='a token never used; repeatable'
  )


def run(args: argparse.Namespace) -> int:
  """Writes the answers to prompts, on stdout or into a file."""
  prompts = _prompts(args)
  if args.output:
    check_output(args.output)
  from t2x.api import load

  folder = run_folder(args.run)
  loaded = load(folder, checkpoint=args.checkpoint, overrides=args.overrides, processes=join(args))
  for where, prompt in prompts:
    try:
      loaded.task.check_prompt(prompt)
    except UserError as error:
      raise UserError(f'{where}: {error}') from error
  answers = _answers(args, loaded, [prompt for _, prompt in prompts])
  if not args.processes.first:
    # Every process computes the answers; the first one writes them.
    for _ in answers:
      pass
    return 0
  if args.output:
    with output_file(args.output) as file:
      for answer in answers:
        print(json.dumps(answer, ensure_ascii=False), file=file)
    return 0
  for answer in answers:
    if args.json:
      print(json.dumps(answer, ensure_ascii=False), flush=True)
      continue
    for one in [answer, *answer.get('others', [])]:
      print(f'{answer["prompt"]!r} -> {one["text"]}')
  return 0


def _prompts(args: argparse.Namespace) -> list[Prompt]:
  if bool(args.prompt) == bool(args.input):
    raise UserError('generate needs --prompt TEXT or --input FILE (one of them)')
  return told_prompts(args.prompt) if args.prompt else read_prompts(args.input)


def _answers(
  args: argparse.Namespace, loaded: 'Loaded', prompts: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields the answers to the prompts in order, a batch at a time."""
  strategy = decoding_strategy(args, loaded.task)
  for start in range(0, len(prompts), args.batch_size):
    yield from loaded.generate(
      prompts[start : start + args.batch_size],
      strategy=strategy,
      max_new_tokens=args.max_new_tokens,
      num_return=args.num_return,
      seed=args.seed + start,
    )


def decoding_strategy(args: argparse.Namespace, task: Any) -> Any:
  """The decoding strategy that the flags ask for, over the task's own, or greedy."""
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
  if args.greedy:
    strategy = decode.Greedy()
  elif sampling:
    strategy = decode.Sampling(**sampling)
  elif 'width' in beam:
    strategy = decode.Beam(**beam)
  elif beam:
    if not isinstance(own, decode.Beam):
      raise UserError('--length-penalty, --average-length and --stop need --beam WIDTH')
    strategy = dataclasses.replace(own, **beam)
  # What the task asks of every answer, such as a first token or where it ends, holds whatever the strategy.
  given = _processors(args)
  kept = [one for one in own.processors if type(one) not in map(type, given)]
  return dataclasses.replace(strategy, processors=(*kept, *given), eos_ids=own.eos_ids)


def _beam(args: argparse.Namespace) -> dict[str, Any]:
  """Settings of beam search; None: not given."""
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


def _processors(args: argparse.Namespace) -> list[Any]:
  """Logits processors in the order in which they are applied."""
  from t2x import decode

  made = {
    decode.RepetitionPenalty: args.repetition_penalty,
    decode.NoRepeatNGram: args.no_repeat_ngram,
    decode.MinNewTokens: args.min_new_tokens,
    decode.SuppressTokens: args.suppress,
  }
  return [make(value) for make, value in made.items() if value is not None]
