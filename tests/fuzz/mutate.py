"""Mutates shipped configs and looks at what `t2x check` does: exit code 0 or 2, never 1, no traceback.

    python -m tests.fuzz.mutate tokens --count 400 --seed 0     # one token of a config changed at random
    python -m tests.fuzz.mutate values                          # every parameter of every run, odd values

Prints one line per failure and a count of exit codes; exits 1 where there is a failure. A small seeded
part runs with the tests (test_mutations.py).
"""

import argparse
import collections
import contextlib
import io
import random
import shutil
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

from t2x import config as config_lib
from t2x.cli import main as t2x
from t2x.config.parse import parse_value
from t2x.experiments import read_config

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / 'configs' / 'runs').glob('*.gin'))
# Model files that `check` shapes in a second; the largest ones take several.
FILES = [
  path
  for path in sorted((ROOT / 'configs').rglob('*.gin'))
  if not path.stem.startswith(('gpt3', 'llama3_70b', 't5_v1_1_x'))
]
ODD_VALUES = ('-1', '0', '1e12', 'nan', '1e999', "''", '[]')
ODD_TOKENS = (*ODD_VALUES, '1.5', 'None', 'True', '@', '%', '=', ':', '(', '{', '@MLP', '%nothing')


def check(*arguments: str) -> tuple[int, str]:
  """Exit code and stderr of `t2x check` in this process."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      code = t2x(['check', *arguments])
    except SystemExit as stop:
      code = int(stop.code or 0)
  return code, err.getvalue()


def problem(code: int, err: str) -> str | None:
  """What is wrong with how a check ended; None: nothing."""
  lines = [line for line in err.splitlines() if line.strip()]
  if code not in (0, 2):
    return f'exit code {code}: {lines[-1] if lines else "no message"}'
  if 'Traceback' in err:
    return 'a traceback'
  if code == 2 and not lines:
    return 'no message'
  return None


Tokens = dict[int, list[str]]


def tokens_of(text: str) -> Iterator[tokenize.TokenInfo]:
  """Names, numbers, strings and operators."""
  kinds = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP)
  return (t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type in kinds)


def mutated(text: str, rng: random.Random, known: Tokens) -> str:
  """The text with one token changed: mostly into another one of its kind, so that it still parses.

  Args:
    text: a config.
    rng: draws the token and the change.
    known: tokens of all configs, and the names of all parts, by kind.
  """
  tokens = list(tokens_of(text))
  if rng.random() < 0.7:
    token = rng.choice([t for t in tokens if t.type != tokenize.OP])
    number = token.type == tokenize.NUMBER and rng.random() < 0.5
    new = rng.choice(ODD_VALUES if number else known[token.type])
  else:
    token, other = rng.choice(tokens), rng.choice(tokens)
    ways = ['', f'{token.string} {token.string}', other.string, *ODD_TOKENS]
    new = rng.choice(ways)
  lines = text.splitlines(keepends=True)
  (row, start), (_, stop) = token.start, token.end
  lines[row - 1] = lines[row - 1][:start] + new + lines[row - 1][stop:]
  return ''.join(lines)


def token_mutations(count: int, seed: int) -> Iterator[tuple[str, int, str]]:
  """(what was done, exit code, stderr) of `count` mutations."""
  rng = random.Random(seed)
  known: Tokens = {tokenize.NAME: sorted(read_config([RUNS[0]]).bindings.registry.names())}
  for file in FILES:
    for token in tokens_of(file.read_text()):
      known.setdefault(token.type, []).append(token.string)
  with tempfile.TemporaryDirectory() as folder:
    copy = Path(folder) / 'configs'
    shutil.copytree(ROOT / 'configs', copy)
    for number in range(count):
      file = copy / rng.choice(FILES).relative_to(ROOT / 'configs')
      text = file.read_text()
      new = mutated(text, rng, known)
      file.write_text(new)
      before, after = (set(one.splitlines()) for one in (text, new))
      what = f'{number}: {file.relative_to(copy)}: {" | ".join(sorted(after - before))}'
      try:
        yield what, *check(str(file))
      finally:
        file.write_text(text)


def odd_settings(part: float = 1.0, seed: int = 0) -> Iterator[tuple[str, int, str]]:
  """(setting, exit code, stderr) of odd values for the parameters of all runs, each parameter once.

  Args:
    part: share of the settings, drawn at random.
    seed: of the drawing.

  A value that the parameter's type or range excludes, and that is accepted, is yielded as exit code 1.
  """
  rng = random.Random(seed)
  seen: set[str] = set()
  for run in RUNS:
    config = read_config([run])
    for call in config_lib.calls(config.root):
      for name, value in call.values.items():
        target = f'{call.part.name}.{name}'
        plain = isinstance(value, (int, float, str, list, tuple, dict)) or value is None
        if not plain or target in seen or name not in call.part.parameters:
          continue
        seen.add(target)
        for odd in ODD_VALUES:
          if rng.random() < part:
            yield from _setting(run, config, call.part.parameters[name].hint, target, odd)


def _setting(run, config, hint, target, odd):
  code, err = check(str(run), f'--gin.{target}={odd}')
  excluded = odd != 'nan' and config_lib.problem(parse_value(odd), hint, config.bindings.exact_part)
  if code == 0 and excluded:
    code, err = 1, f'accepted, but {target} {excluded}'
  yield f'{run.name} --gin.{target}={odd}', code, err


def main() -> int:
  """Runs a fuzz and prints its failures."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('kind', choices=('tokens', 'values'))
  parser.add_argument('--count', type=int, default=400, help='mutations of tokens (default: 400)')
  parser.add_argument('--part', type=float, default=1.0, help='share of the values (default: 1)')
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()
  if args.kind == 'tokens':
    results = token_mutations(args.count, args.seed)
  else:
    results = odd_settings(args.part, args.seed)
  codes: collections.Counter[int] = collections.Counter()
  failures = 0
  for what, code, err in results:
    codes[code] += 1
    if reason := problem(code, err):
      failures += 1
      print(f'{what}\n    {reason}', flush=True)
  told = ', '.join(f'exit {code}: {count}' for code, count in sorted(codes.items()))
  print(f'{codes.total()} checks, {failures} failures ({told})')
  return 1 if failures else 0


if __name__ == '__main__':
  sys.exit(main())
