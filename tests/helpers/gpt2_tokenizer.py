"""A folder with a tokenizer of GPT-2's format and size, whose merges are left out."""

import json
from pathlib import Path

SIZE = 50257


def write(folder: Path) -> Path:
  """Writes vocab.json, merges.txt and tokenizer_config.json to `folder`, and returns it."""
  # GPT-2 writes bytes without a printable character as the characters from 256 on.
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  characters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(68)]
  unused = (f'unused{i}' for i in range(SIZE - len(characters) - 1))
  names = [*characters, *unused, '<|endoftext|>']
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'vocab.json').write_text(json.dumps({name: i for i, name in enumerate(names)}))
  (folder / 'merges.txt').write_text('#version: 0.2\n')
  settings = {'tokenizer_class': 'GPT2Tokenizer', 'eos_token': '<|endoftext|>'}
  (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
  return folder
