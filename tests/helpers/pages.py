"""Runs the code blocks of a Markdown page, in the order of the page.

- ```` ```gin ```` and ```` ```python ```` blocks that begin with a comment `# NAME` are written to the file NAME.
- ```` ```bash ```` blocks are run; ```` ```sh ```` blocks, such as installations and commands of clusters, are not.
- A ```` ```text ```` block shows lines of what the block before it prints; `...` stands for any text. If a line begins
  with `t2x: `, the last command of the block must fail with that error.
"""

import contextlib
import dataclasses
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from t2x.cli import main
from t2x.config import gin_path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# Variants of sweeps whose programs take too long to compile.
ONLY = {
  'experiments/feed_forward/sweep.gin': "Sweep.only=['relu']",
  'activations.gin': "Sweep.only=['relu']",
  'heads.gin': "Sweep.only=['heads_1']",
}
# `t2x diff` has the exit codes of diff.
CODES = {'diff': 1}


@dataclasses.dataclass
class Block:
  """A code block that is written or run.

  Attributes:
    file: name of the file to write; None for commands.
    text: content of the file.
    commands: the commands to run.
    printed: the lines that the page shows after the commands.
  """

  file: str | None = None
  text: str = ''
  commands: list[str] = dataclasses.field(default_factory=list)
  printed: list[str] = dataclasses.field(default_factory=list)

  def code(self, command: str) -> int:
    """Returns the exit code of a command; only the last one may fail."""
    if command == self.commands[-1] and any(line.startswith('t2x: ') for line in self.printed):
      return 75 if 'run the same command to resume' in self.printed[0] else 2
    return CODES.get(command.split()[1], 0)


def blocks(page: Path) -> list[Block]:
  """Returns the blocks of a page."""
  result: list[Block] = []
  for language, text in BLOCK.findall(page.read_text()):
    if language in ('gin', 'python') and (name := re.match(r'# (\S+\.\w+)\n', text)):
      result.append(Block(file=name[1], text=text))
    elif language == 'bash':
      lines = [line.split('  #')[0].strip() for line in text.splitlines()]
      commands = [part.strip() for line in lines if line for part in line.split('&&')]
      result.append(Block(commands=commands))
    elif language == 'text':
      assert result and result[-1].commands, f'{page.name}: no commands print {text!r}'
      result[-1].printed = text.splitlines()
  return result


def run_page(page: Path, folder: Path, printed: Callable[[], str], short: bool = True) -> None:
  """Runs a page in a folder with `configs`, `experiments` and `launch`.

  Args:
    page: the Markdown file.
    folder: an empty folder, which is the working directory.
    printed: returns what was printed since its last call.
    short: adds settings that make training short.
  """
  for name in ('configs', 'experiments', 'launch'):
    (folder / name).symlink_to(ROOT / name)
  for block in blocks(page):
    if block.file is not None:
      (folder / block.file).write_text(block.text)
      continue
    for command in block.commands:
      printed()
      code = run_command(command, short)
      output = printed()
      assert code == block.code(command), f'{page.name}: {command}: exit code {code}\n{output}'
      assert 'Traceback' not in output, f'{page.name}: {command}\n{output}'
    for line in block.printed:
      pattern = '.*'.join(map(re.escape, line.split('...')))
      assert re.search(pattern, output), (
        f'{page.name}: {command} does not print\n{line}\nbut\n{output}'
      )


def run_command(command: str, short: bool) -> int:
  """Runs a command, in this process if it is one of t2x or a Python file."""
  words = shlex.split(command)
  # tests/test_new.py runs the tests that pages show.
  if words[0] in ('pip', 'pytest') or words[1:3] == ['-m', 'pytest']:
    return 0
  if words[0] == 't2x':
    return run_t2x([*words[1:], *(shortened(words) if short else ())])
  if words[0] == 'python' and words[1].endswith('.py') and not words[1].startswith('experiments'):
    with own_arguments(words[1:]):
      runpy.run_path(words[1], run_name='__main__')
    return 0
  program = f'{shlex.quote(sys.executable)} -m t2x '
  done = subprocess.run(
    re.sub(r'(?<!\S)t2x ', lambda _: program, command),
    shell=True,
    check=False,
    capture_output=True,
    text=True,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
  )
  print(done.stdout, done.stderr)
  return done.returncode


# Settings of commands in tests, by a name that their config uses. A config that does not use a name would
# refuse its setting.
SHORT = {
  'Trainer': ['Trainer.num_steps=3', 'Trainer.eval_every=0', 'Trainer.eval_batches=1'],
  'warmup_steps': ['Cosine.warmup_steps=1'],
  'Samples': ['Samples.num_tokens=4'],
  'CompletedImages': ['CompletedImages.num_examples=1', 'CompletedImages.num_samples=1'],
  'DrawnScenes': ["DrawnScenes.examples={'train': 300, 'validation': 30, 'test': 20}"],
  'MovingDigits': ['MovingDigits.train_examples=300'],
  'FrameWords': ['FrameWords.num_words=60', 'FrameWords.num_frames=300', 'vocab_size=170'],
  'DrawnTexts': ['DrawnTexts.num_examples=2'],
  'Translations': ['Translations.num_examples=2'],
  'WordErrors': ['WordErrors.num_examples=2'],
  'StandardLibrary': [
    'CausalLM.source=@Part()',
    'Part.source=@StandardLibrary()',
    "Part.examples={'train': 60, 'validation': 2}",
    'SentencePiece.sample_megabytes=0.5',
    'vocab_size=512',
  ],
}


def shortened(words: list[str]) -> list[str]:
  """Returns arguments that make a command of t2x short."""
  if words[1] not in ('train', 'sweep'):
    return []
  files = [word for word in words[2:] if word.endswith('.gin') or gin_path(word) != word]
  text = ''.join(map(with_includes, files))
  if words[1] == 'sweep':
    # Sweeps have no samples.
    text = text.replace('Samples', '')
  if '@Bytes' in text:
    # The settings are those of a trained tokenizer.
    text = text.replace('StandardLibrary', '')
  bindings = [
    one for name, group in SHORT.items() if re.search(rf'\b{name}\b', text) for one in group
  ]
  own = {word.partition('=')[0] for word in words}
  arguments = [f'--gin.{one}' for one in bindings if f'--gin.{one.partition("=")[0]}' not in own]
  if words[1] == 'train':
    return arguments
  only = [f'--gin.{ONLY[word]}' for word in files if word in ONLY]
  return [
    '--gin.Sweep.seeds=2',
    *only,
    *arguments,
    *([] if '--dry-run' in words else ['--processes', '1']),
  ]


def with_includes(file: str) -> str:
  """Returns the text of a gin file, of the files that it includes, and of the base of a sweep."""
  path = Path(gin_path(file))
  text = path.read_text()
  for name in re.findall(r"^(?:include|  base =) '(.+)'", text, re.MULTILINE):
    text += with_includes(name if name.startswith('t2x:') else str(path.parent / name))
  return text


def run_t2x(arguments: list[str]) -> int:
  """Runs t2x in this process."""
  try:
    return main(arguments)
  except SystemExit as stop:
    return int(stop.code or 0)


@contextlib.contextmanager
def own_arguments(arguments: list[str]) -> Iterator[None]:
  before, sys.argv = sys.argv, arguments
  try:
    yield
  finally:
    sys.argv = before
