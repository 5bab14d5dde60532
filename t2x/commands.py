"""What each command of the command line does. Imported when a command runs, not for `--help`."""

import argparse
import contextlib
import dataclasses
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from t2x import config as config_lib
from t2x.errors import UserError
from t2x.prompts import Prompt, check_output, output_file, read_prompts, told_prompts
from t2x.run_folder import claimed
from t2x.terminal import logged, wrapped

__all__ = ['COMMANDS', 'decoding_strategy']

log = logging.getLogger('t2x')

# The rooms whose public names config files may use.
ROOMS = ('layers', 'models', 'data', 'tasks', 'decode', 'parallel', 'train')
# Functions among them that act (download, write files, connect): no config may call them.
ACTIONS = ('connect', 'draw_patterns', 'fetch', 'inspect_batches', 'train')


def load(
  files: Sequence[str | Path | config_lib.GinText],
  overrides: Sequence[str] = (),
  base: config_lib.Config | None = None,
  folders: Sequence[str] | None = None,
) -> config_lib.Config:
  """Loads and checks gin files, in order; arguments as of `config.load`."""
  modules = [f't2x.{room}' for room in ROOMS]
  try:
    return config_lib.load(files, overrides, modules, base=base, without=ACTIONS, folders=folders)
  except UserError:
    from t2x.sweeps.sweep import binds_sweep

    for file in files:
      if not isinstance(file, config_lib.GinText) and binds_sweep(file):
        raise UserError(
          f'{file} is a sweep file: `t2x sweep {file}` runs it, `t2x check {file}` checks it'
        ) from None
    raise


def join(args: argparse.Namespace) -> Any:
  """The processes of this run; waits for those that have not started."""
  from t2x.parallel import connect, find_cluster

  cluster = find_cluster(args.coordinator, args.num_processes, args.process_id, args.wait)
  args.processes = connect(cluster, args.wait, args.lost_after)
  return args.processes


def finish(args: argparse.Namespace) -> None:
  """A command's good end: processes leave each other together."""
  if (processes := getattr(args, 'processes', None)) is not None:
    processes.finish()


def train(args: argparse.Namespace) -> int:
  """`t2x train`: a new run, or the rest of an old one."""
  config = load(args.files, args.overrides)
  processes = join(args)
  folder = Path(args.out or Path('runs') / Path(args.files[0]).stem)
  with contextlib.ExitStack() as held:
    # Joining several processes may have replaced the streams.
    held.enter_context(wrapped())
    if processes.first:
      held.enter_context(claimed(folder, config, load, args.fresh))
      args.log = folder / 'log.txt'
      held.enter_context(logged(args.log))
      log.debug('t2x train %s', ' '.join([*args.files, *args.overrides]))
      for note in args.notes:
        log.debug(note)
      for note in config.notes():
        log.info(note)
    processes.barrier()
    from t2x.train import train as run_training

    run_training(
      config.build(), folder, config_lib.render(config), args.verbose, processes=processes
    )
  return 0


def open_run(args: argparse.Namespace) -> tuple[Any, Any, int]:
  """The run of a folder, its parameters as evaluation uses them, and the step of those."""
  folder = _run_folder(args)
  experiment = load([folder / 'config.gin'], args.overrides)
  from t2x.train import Run

  run = Run(experiment.build(), folder, join(args))
  return run, *run.restore_params(_checkpoint(args))


def _run_folder(args: argparse.Namespace) -> Path:
  folder = Path(args.run)
  if not (folder / 'config.gin').exists():
    raise UserError(f'{folder} is no run folder: it has no config.gin')
  return folder


def _checkpoint(args: argparse.Namespace) -> Any:
  which = int(args.checkpoint) if args.checkpoint.isdigit() else args.checkpoint
  if which not in ('best', 'last') and not isinstance(which, int):
    raise UserError(f"--checkpoint '{which}' is neither best nor last nor a step")
  return which


def evaluate(args: argparse.Namespace) -> int:
  """`t2x eval`: metrics over a whole split."""
  run, params, step = open_run(args)
  from t2x.train.writers import json_value

  split = args.split or run.task.eval_split
  metrics, samples = run.evaluate(params, split, max_generated=args.limit)
  if not run.processes.first:
    return 0
  values = {'step': step, 'split': split, **metrics, **run.weights}
  if args.json:
    print(json.dumps({name: json_value(value) for name, value in values.items()}))
    return 0
  for name, value in values.items():
    print(f'{name:20} {value if isinstance(value, str) else f"{value:.6g}"}')
  for sample in samples:
    print('\n' + '\n'.join(f'{name:8} {text}' for name, text in sample.items()))
  return 0


def decoding_strategy(args: argparse.Namespace, task: Any) -> Any:
  """The decoding strategy that the flags ask for, over the task's own, or greedy."""
  from t2x import decode

  own = getattr(task, 'strategy', decode.Greedy())
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


def _prompts(args: argparse.Namespace) -> list[Prompt]:
  if bool(args.prompt) == bool(args.input):
    raise UserError('generate needs --prompt TEXT or --input FILE (one of them)')
  return told_prompts(args.prompt) if args.prompt else read_prompts(args.input)


def _answers(
  args: argparse.Namespace, run: Any, model: Any, prompts: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """One object a prompt, in order: prompt, text, tokens, log_probs, score, and `others`."""
  strategy = decoding_strategy(args, run.task)
  for start in range(0, len(prompts), args.batch_size):
    some = prompts[start : start + args.batch_size]
    answers = run.task.generate(
      model,
      run.tokenizer,
      some,
      strategy=strategy,
      max_new_tokens=args.max_new_tokens,
      num_return=args.num_return,
      seed=args.seed + start,
    )
    for prompt, (best, *others) in zip(some, answers, strict=True):
      yield {'prompt': prompt} | best | ({'others': others} if others else {})


def generate(args: argparse.Namespace) -> int:
  """`t2x generate`: answers to prompts, on stdout or in a file."""
  prompts = _prompts(args)
  if args.output:
    check_output(args.output)
  run, params, _ = open_run(args)
  for where, prompt in prompts:
    try:
      run.task.check_prompt(prompt)
    except UserError as error:
      raise UserError(f'{where}: {error}') from error
  answers = _answers(args, run, run.model(params), [prompt for _, prompt in prompts])
  if not run.processes.first:
    # The answers are every process's work and the first one's to tell.
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


def check(args: argparse.Namespace) -> int:
  """`t2x check`: resolves a config, or those of a sweep, and shapes model, state and step."""
  start = time.monotonic()
  from t2x.sweeps.sweep import binds_sweep

  sweeps = [file for file in args.files if binds_sweep(file)]
  if sweeps and len(args.files) > 1:
    raise UserError(f'{sweeps[0]} is a sweep file, which is checked alone: t2x check {sweeps[0]}')
  if sweeps:
    from t2x.sweeps.check import check_sweep

    report = check_sweep(Path(sweeps[0]), args.overrides, load, args.devices)
  else:
    from t2x.train import check_experiment

    config = load(args.files, args.overrides)
    for note in config.notes():
      print(note)
    report = check_experiment(config.build(), args.devices)
  report, *table = report.split('\n', 1)
  print(
    f'{" ".join(args.files)}: ok; {report} ({time.monotonic() - start:.1f} s)', *table, sep='\n'
  )
  return 0


def show(args: argparse.Namespace) -> int:
  """`t2x show`: the resolved config with origins, the sharding, or a picture of its patterns."""
  config = load(args.files, args.overrides)
  if args.sharding:
    from t2x.train import layout_report

    print(layout_report(config.build(), args.devices))
    return 0
  if not args.pattern:
    print(config_lib.show(config))
    return 0
  from t2x.train import draw_patterns

  for path, pattern in draw_patterns(config.build(), Path(args.pattern), args.length):
    print(f'{path}: {pattern}')
  return 0


def diff(args: argparse.Namespace) -> int:
  """`t2x diff`: what differs between two files or run folders. Exit code 1 when something does."""
  sides = [Path(side) / 'config.gin' if Path(side).is_dir() else side for side in (args.a, args.b)]
  lines = config_lib.diff(*(load([side], args.overrides) for side in sides))
  print('\n'.join(lines) if lines else 'no difference')
  return 1 if lines else 0


def sweep(args: argparse.Namespace) -> int:
  """`t2x sweep`: the trials of a sweep file."""
  from t2x.sweeps.run import sweep

  return sweep(args, load)


def convert(args: argparse.Namespace) -> int:
  """`t2x convert import | export | run`."""
  from t2x import convert

  if args.way == 'import':
    convert.import_folder(args, load)
  elif args.way == 'run':
    convert.convert_run(_run_folder(args), Path(args.to))
  else:
    convert.export_run(_run_folder(args), Path(args.to), load, _checkpoint(args), args.family)
  return 0


def data(args: argparse.Namespace) -> int:
  """`t2x data fetch | tokenizer | inspect`."""
  return {'fetch': _fetch, 'tokenizer': _tokenizer, 'inspect': _inspect}[args.verb](args)


def _fetch(args: argparse.Namespace) -> int:
  from t2x.data import fetch

  print(fetch(args.name, args.out))
  return 0


def _tokenizer(args: argparse.Namespace) -> int:
  task, _ = _task_and_trainer(args)
  tokenizer = task.fit_tokenizer()
  if tokenizer is None:
    raise UserError(f'{type(task).__name__} has no tokenizer')
  print(f'{task.tokenizer}: {tokenizer.vocab_size} tokens, fingerprint {tokenizer.fingerprint}')
  if args.out:
    tokenizer.save(Path(args.out))
    print(f'written to {args.out}')
  if args.text is not None:
    print(' '.join(repr(piece) for piece in tokenizer.pieces(tokenizer.encode(args.text))))
  return 0


def _inspect(args: argparse.Namespace) -> int:
  from t2x.data import Batches, inspect_batches

  task, trainer = _task_and_trainer(args)
  tokenizer = task.fit_tokenizer()
  rows = task.rows(task.train_split, tokenizer)
  batches = Batches(
    rows,
    task.transform(tokenizer, train=True),
    batch_size=trainer.batch_size if trainer else 8,
    seed=trainer.seed if trainer else 0,
  )
  inspect_batches(batches, tokenizer, start=args.step, num_batches=args.batches)
  return 0


def _task_and_trainer(args: argparse.Namespace) -> tuple[Any, Any]:
  experiment = load(args.files, args.overrides).build()
  if experiment.task is None:
    raise UserError('Experiment.task is not set: there is no data to look at')
  return experiment.task, experiment.trainer


def report(args: argparse.Namespace) -> int:
  """`t2x report`: the report of a sweep, of what has ended so far."""
  from t2x.sweeps import report as reports

  for results in reports.watch(Path(args.sweep), args.every if args.watch else None):
    if args.json:
      print(json.dumps(reports.told(results), ensure_ascii=False), flush=True)
    else:
      print(f'{results.progress()}; {Path(args.sweep) / "report.html"}', flush=True)
    for line in results.damaged:
      print(f't2x: {line}', file=sys.stderr)
  return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
  'train': train,
  'eval': evaluate,
  'generate': generate,
  'check': check,
  'show': show,
  'diff': diff,
  'sweep': sweep,
  'convert': convert,
  'data': data,
  'report': report,
}
