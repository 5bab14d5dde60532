"""Traced merges against recounted pairs and against tokenizers with only these merges."""

import collections
import itertools
import json

import pytest
import sentencepiece
import tokenizers

from t2x.base.errors import UserError
from t2x.data import BPE, Characters, SentencePiece, WordPiece

SPACE = '\u2581'


@pytest.fixture(scope='module')
def text(library):
  return '\n'.join(library)[:20_000]


def test_byte_level_merges_join_the_most_frequent_pair(text):
  tokenizer = BPE(340).train([text])
  model = json.loads(tokenizer.files()['backend.json'])['model']
  merges = [tuple(pair) for pair in model['merges']]
  steps = list(tokenizer.trace([text]))
  assert len(steps) == len(merges) == 340 - 5 - 256
  pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  for done in (0, 1, 7, 40, len(merges) - 1):
    # The library's own tokenizer with only the merges before and after this step.
    counts = []
    for size in (done, done + 1):
      backend = tokenizers.Tokenizer(tokenizers.models.BPE(model['vocab'], merges[:size]))
      backend.pre_tokenizer = pre_tokenizer
      counts.append(backend.encode(text).tokens)
    pairs = collections.Counter()
    for word, _ in pre_tokenizer.pre_tokenize_str(text):
      pairs.update(itertools.pairwise(_tokens(word, merges[:done])))
    step = steps[done]
    assert step.count == pairs[merges[done]] == max(pairs.values())
    assert step.num_tokens == len(counts[1])
    assert step.vocab_size == 5 + 256 + done + 1
    assert step.token == ''.join(step.pair)
    assert step.token == tokenizer.pieces([model['vocab'][''.join(merges[done])]])[0]


def _tokens(word, merges):
  """Applies merges one after another to the whole word, left to right."""
  tokens = list(word)
  for pair in merges:
    i = 0
    while i + 1 < len(tokens):
      if tuple(tokens[i : i + 2]) == pair:
        tokens[i : i + 2] = [''.join(pair)]
      i += 1
  return tokens


def test_merges_of_sentencepiece_end_with_its_tokens(text):
  tokenizer = SentencePiece(420).train([text])
  steps = list(tokenizer.trace([text]))
  processor = sentencepiece.SentencePieceProcessor(
    model_proto=tokenizer.files()['sentencepiece.model']
  )
  pieces = [processor.id_to_piece(i) for i in range(5 + 256, 420)]
  assert [step.token for step in steps] == [piece for piece in pieces if len(piece) > 1]
  assert steps[-1].vocab_size == 420
  assert steps[-1].num_tokens == len(processor.encode(text))
  characters = collections.Counter(itertools.pairwise(text.replace(' ', SPACE)))
  assert steps[0].count == characters[steps[0].pair]


@pytest.mark.parametrize(
  'config', [Characters(50), WordPiece(300), SentencePiece(400, 'unigram')], ids=str
)
def test_tokenizers_without_merges_are_refused(config, text):
  with pytest.raises(UserError, match='no merges to trace'):
    config.train([text]).trace([text])
