"""Text with documents and the task of prefix language modelling on it, for the study of objectives."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2x.data import Chain
from t2x.data.prepared_folders import fingerprint
from t2x.samples import BrownWords, SentimentSnippets
from t2x.samples.fetched import Sample
from t2x.tasks import CausalLM
from t2x.tasks.causal_lm import shift_right

__all__ = ['Documents', 'TextPrefixLM']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Documents(Sample):
  """Texts of the Brown corpus, product reviews and editorials, with `text` (a sentence per line) and `name`.

  Splits are those of `BrownWords` and `SentimentSnippets`, so that no text of the training split is in the held-out
  splits of the classifications.
  """

  def examples(self, split):
    """Yields the documents of a split."""
    words = ((e['name'], ' '.join(e['words'])) for e in BrownWords().examples(split))
    # Film snippets and tweets are single sentences.
    snippets = SentimentSnippets(kinds=('amazon', 'news')).examples(split)
    documents: dict[str, list[str]] = {}
    for name, sentence in (*words, *((e['name'], e['text']) for e in snippets)):
      documents.setdefault(name, []).append(sentence)
    for name, sentences in documents.items():
      yield {'text': '\n'.join(sentences) + '\n', 'name': name}

  def fingerprint(self):
    """Identifies the settings and the content of the files."""
    return fingerprint(self, BrownWords().fingerprint(), SentimentSnippets().fingerprint())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DrawPrefix:
  """Adds `in_source`, 1 for the first tokens of a row, whose number is drawn uniformly, and 0 for the others."""

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    length = len(row['tokens'])
    prefix = np.arange(length) < rng.integers(1, length)
    return {**row, 'in_source': prefix.astype(np.int32)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPrefixLM(CausalLM):
  """Predicts the tokens of a row of text after a prefix, whose tokens see each other with the pattern of `PrefixLM`.

  The length of the prefix is drawn anew in each epoch (https://arxiv.org/abs/1910.10683, section 3.2.3).
  """

  def transform(self, *, train):
    """Returns the transform that draws prefixes; they are fixed in evaluation."""
    draw, pieces = _DrawPrefix(), super().transform(train=train)
    return draw if pieces is None else Chain((pieces, draw))

  def spec(self, batch_size):
    """Returns the arrays of `CausalLM` and in_source: int32 [batch, length]."""
    spec = super().spec(batch_size)
    return spec | {'in_source': spec['tokens']}

  def target_weights(self, batch):
    """Returns weight 1 for each token after the prefix that is not padding."""
    return super().target_weights(batch) * (batch['in_source'] == 0)

  def hidden(self, model, batch, key):
    segments = batch['segments']
    inputs = shift_right(batch['tokens'], segments, self.tokenizer.ids.bos_id)
    # Shifted as the inputs are, so that the token before the first target is in the prefix.
    prefix = (shift_right(batch['in_source'], segments, 1) != 0) & (segments != 0)
    tokens = dataclasses.replace(self.row_tokens(batch, inputs), marks={'prefix': prefix})
    return model.hidden(inputs, tokens=tokens, key=key)
