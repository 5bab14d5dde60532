"""Decoding strategies compared: repetition, diversity and likelihood of generated text, beside real text.

    t2x train configs/runs/quickstart.gin
    t2x train configs/runs/libreoffice_bahdanau.gin
    python experiments/decoding/decoding.py runs/quickstart runs/libreoffice_bahdanau

The first run is a language model, the second a translation model. Each strategy continues, or translates, three sets of
held-out prompts. Prints a table per run in Markdown and writes decoding.csv and decoding.png into the folder results/
next to this file (needs the extra `report`).
"""

import argparse
import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measures import distinct, repetition, self_bleu

import t2x
from t2x.data.sources.subset import spread
from t2x.decode import Beam, DiverseBeam, Greedy, Sampling, Strategy
from t2x.loaded import Loaded
from t2x.tasks.likelihoods import encode_pair, log_likelihoods

HERE = Path(__file__).parent
SETS, PROMPTS, CHARACTERS, LENGTH, RETURNED = 3, 32, 100, 64, 4
STRATEGIES: Mapping[str, Strategy] = {
  'greedy': Greedy(),
  'sampling': Sampling(),
  'top-k': Sampling(top_k=20),
  'nucleus': Sampling(top_p=0.9),
  'beam': Beam(width=RETURNED),
  'diverse beam': DiverseBeam(width=RETURNED, num_groups=RETURNED, strength=0.5),
}
METRICS = ('perplexity', 'repetition', 'distinct_1', 'distinct_2', 'self_bleu', 'bleu', 'tokens')

Pair = tuple[str, str]


def prompts_of(loaded: Loaded) -> list[list[Pair]]:
  """Returns sets of held-out prompts and what follows them: the next text, or the reference translation."""
  task = loaded.task
  pairs: list[Pair] = []
  if loaded.model.model.spec.is_encoder_decoder:
    examples = task.source.load('test')
    for example in (examples[i] for i in range(len(examples))):
      texts = example['source'], example['target']
      if all(5 <= len(loaded.tokenizer.encode(text)) < LENGTH for text in texts):
        pairs.append(texts)
  else:
    for example in task.source.load(task.eval_split):
      text = example['text']
      # One prompt per 4,000 characters, from the beginning of a line.
      for start in range(2000, len(text) - 1000, 4000):
        begin = text.index('\n', start) + 1
        prompt = text[begin : begin + CHARACTERS].rstrip()
        pairs.append((prompt, text[begin + len(prompt) : begin + 1000]))
  chosen = [pairs[i] for i in spread(SETS * PROMPTS, len(pairs))]
  return [chosen[number::SETS] for number in range(SETS)]


def real(loaded: Loaded, pairs: Sequence[Pair]) -> dict[str, float]:
  """Returns the measures of the real text, whose perplexity is computed by teacher forcing."""
  tokenizer = loaded.tokenizer
  if loaded.model.model.spec.is_encoder_decoder:
    sources, targets = zip(*pairs, strict=True)
    scores = _log_probs(loaded.logits(list(sources), list(targets)).astype(np.float64))
    texts = [[*tokenizer.encode(target), tokenizer.eos_id] for target in targets]
    total = sum(s[np.arange(len(t)), t].sum() for s, t in zip(scores, texts, strict=True))
  else:
    encoded = [encode_pair(tokenizer, *pair) for pair in pairs]
    encoded = [(prompt, text[:LENGTH]) for prompt, text in encoded]
    texts = [text for _, text in encoded]
    scores = log_likelihoods(loaded.model, encoded, pad_id=tokenizer.pad_id, batch_size=PROMPTS)
    total = sum(score.log_prob for score in scores)
  return _measures(texts, float(total))


def _log_probs(logits: np.ndarray) -> np.ndarray:
  """Normalises logits [..., vocab]."""
  shifted = logits - logits.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def generated(
  loaded: Loaded, strategy: Strategy, pairs: Sequence[Pair], seed: int
) -> dict[str, float]:
  """Returns the measures of the first text of each prompt, and self-BLEU of the texts of a prompt."""
  import sacrebleu

  several = 1 if isinstance(strategy, Greedy) else RETURNED
  settings: dict[str, Any] = {'strategy': strategy, 'num_return': several, 'seed': seed}
  answers = loaded.generate([prompt for prompt, _ in pairs], max_new_tokens=LENGTH, **settings)
  total = sum(sum(answer['log_probs']) for answer in answers)
  measures = _measures([answer['tokens'] for answer in answers], total)
  if several > 1:
    sets = [[a['tokens'], *(o['tokens'] for o in a['others'])] for a in answers]
    measures['self_bleu'] = sum(map(self_bleu, sets)) / len(sets)
  if loaded.model.model.spec.is_encoder_decoder:
    outputs, references = [a['text'] for a in answers], [target for _, target in pairs]
    measures['bleu'] = sacrebleu.corpus_bleu(outputs, [references]).score
  return measures


def _measures(texts: Sequence[Sequence[int]], log_prob: float) -> dict[str, float]:
  count = sum(map(len, texts))
  return {
    'perplexity': math.exp(-log_prob / count),
    'repetition': repetition(texts),
    'distinct_1': distinct(texts, 1),
    'distinct_2': distinct(texts, 2),
    'tokens': count / len(texts),
  }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns a table in Markdown: the mean over the sets of prompts, and the smallest and the largest value."""
  lines = [f'| strategy | {" | ".join(METRICS)} |', '|---' * (len(METRICS) + 1) + '|']
  for name in dict.fromkeys(row['strategy'] for row in rows):
    cells = []
    for metric in METRICS:
      values = [row[metric] for row in rows if row['strategy'] == name and metric in row]
      if values:
        mean = sum(values) / len(values)
        cells.append(f'{mean:.3g} ({min(values):.3g} to {max(values):.3g})')
      else:
        cells.append('')
    lines.append(f'| {name} | {" | ".join(cells)} |')
  return '\n'.join(lines)


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
  """Draws repetition by perplexity: a point per strategy and set of prompts."""
  from matplotlib.figure import Figure

  runs = [*dict.fromkeys(row['run'] for row in rows)]
  figure = Figure(figsize=(5 * len(runs), 4), layout='constrained')
  for axis, run in zip(np.atleast_1d(figure.subplots(1, len(runs))), runs, strict=True):
    for name in dict.fromkeys(row['strategy'] for row in rows):
      own = [row for row in rows if row['run'] == run and row['strategy'] == name]
      marker = {'marker': '*', 's': 90} if name == 'real text' else {'marker': 'o', 's': 25}
      x, y = [row['perplexity'] for row in own], [row['repetition'] for row in own]
      axis.scatter(x, y, label=name, **marker)
    axis.set(xscale='log', xlabel='perplexity under the model', title=run)
    axis.set_ylabel('share of repeated 4-grams')
    axis.xaxis.set_major_formatter('{x:.0f}')
    axis.xaxis.set_minor_formatter('{x:.0f}')
    axis.tick_params(which='minor', labelsize='small')
    axis.legend(fontsize='small')
  figure.savefig(path, dpi=120)


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
  """Writes one line per strategy and set of prompts."""
  path.parent.mkdir(exist_ok=True)
  with path.open('w', newline='') as file:
    writer = csv.DictWriter(file, ['run', 'set', 'strategy', *METRICS])
    writer.writeheader()
    writer.writerows(rows)


def main() -> None:
  """Generates, prints the tables and writes the files."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('runs', type=Path, nargs='+', help='run folders')
  parser.add_argument('--out', type=Path, default=HERE / 'results', help='folder of the results')
  args = parser.parse_args()
  rows: list[dict[str, Any]] = []
  for folder in args.runs:
    loaded = t2x.load(folder)
    start = len(rows)
    for number, pairs in enumerate(prompts_of(loaded)):
      labels = {'run': folder.name, 'set': number}
      rows.append({**labels, 'strategy': 'real text', **real(loaded, pairs)})
      for name, strategy in STRATEGIES.items():
        rows.append({**labels, 'strategy': name, **generated(loaded, strategy, pairs, number)})
        print(rows[-1], flush=True)
    print(f'\n{folder.name}\n\n{table(rows[start:])}\n', flush=True)
    write(rows, args.out / 'decoding.csv')
  draw(rows, args.out / 'decoding.png')


if __name__ == '__main__':
  main()
