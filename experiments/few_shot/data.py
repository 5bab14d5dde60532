"""Writes dates of the Unicode CLDR (through Babel) for few-shot evaluation: `python experiments/few_shot/data.py DIR`.

A training document has six pairs of an English date and its translation into one of six languages. The language is not
named, so that only earlier pairs show it. LANGUAGE.train.tsv and LANGUAGE.validation.tsv have pairs of one language.
"""

import json
import sys
from pathlib import Path

import numpy as np

from t2x.samples import BabelDates

LANGUAGES = ('de', 'fr', 'es', 'it', 'nl', 'pt')
NUM_DOCUMENTS, NUM_PAIRS, NUM_QUERIES = 12_000, 6, 200


def main(folder: Path) -> None:
  """Writes the files."""
  folder.mkdir(parents=True, exist_ok=True)
  count = NUM_DOCUMENTS * NUM_PAIRS // len(LANGUAGES)
  pairs = {}
  for language in LANGUAGES:
    splits = BabelDates(language=language, train_examples=count).generate()
    lines = {split: [f'{p["source"]} = {p["target"]}' for p in splits[split]] for split in splits}
    pairs[language] = lines['train']
    for split in ('train', 'validation'):
      rows = [line.replace(' = ', '\t', 1) for line in lines[split][:NUM_QUERIES]]
      (folder / f'{language}.{split}.tsv').write_text('\n'.join(rows) + '\n', encoding='utf-8')
  documents = [
    {'text': '\n'.join(lines[start : start + NUM_PAIRS]) + '\n'}
    for lines in pairs.values()
    for start in range(0, len(lines), NUM_PAIRS)
  ]
  order = np.random.default_rng(0).permutation(len(documents))
  held_out = 200
  for split, indices in (('validation', order[:held_out]), ('train', order[held_out:])):
    text = ''.join(json.dumps(documents[i], ensure_ascii=False) + '\n' for i in indices)
    (folder / f'{split}.jsonl').write_text(text, encoding='utf-8')


if __name__ == '__main__':
  main(Path(sys.argv[1]))
