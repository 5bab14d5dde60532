"""Measures of generated text: repetition, distinct n-grams and self-BLEU, on sequences of tokens."""

from collections.abc import Iterator, Sequence

Tokens = Sequence[int]


def ngrams(tokens: Tokens, n: int) -> Iterator[tuple[int, ...]]:
  """Yields the n-grams of a text in order."""
  return zip(*(tokens[i:] for i in range(n)), strict=False)


def repetition(texts: Sequence[Tokens], n: int = 4) -> float:
  """Returns the share of n-grams that occur earlier in the same text (Welleck et al. 2019,
  https://arxiv.org/abs/1908.04319), over the n-grams of all texts."""
  found = [[*ngrams(text, n)] for text in texts]
  total = sum(map(len, found))
  return 1 - sum(len(set(own)) for own in found) / total if total else 0.0


def distinct(texts: Sequence[Tokens], n: int = 2) -> float:
  """Returns the number of different n-grams of all texts over their number (Li et al. 2016,
  https://arxiv.org/abs/1510.03055)."""
  found = [gram for text in texts for gram in ngrams(text, n)]
  return len(set(found)) / len(found) if found else 0.0


def self_bleu(texts: Sequence[Tokens]) -> float:
  """Returns the mean BLEU (0 to 100) of each text with the others as references (Zhu et al. 2018,
  https://arxiv.org/abs/1802.01886), computed by sacrebleu on the tokens."""
  import sacrebleu

  words = [' '.join(map(str, text)) for text in texts]
  scores = [
    sacrebleu.sentence_bleu(word, words[:i] + words[i + 1 :], tokenize='none').score
    for i, word in enumerate(words)
  ]
  return sum(scores) / len(scores)
