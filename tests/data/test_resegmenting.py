"""Pieces drawn at random spell the same text, and are the same for the same seed, epoch and row."""

import collections
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny_source import Texts

from t2x.base.errors import UserError
from t2x.data import (
  BPE,
  Batches,
  Bytes,
  ConcatenateAndSplit,
  PackPairs,
  SampledPieces,
  SentencePiece,
  WordPiece,
  evaluation_batches,
  token_rows,
)
from t2x.data.resegmenting import Resegment
from t2x.data.tokenizers.merges import apply_merges

CONFIGS = {
  'byte-level': BPE(500),
  'bpe': SentencePiece(500),
  'unigram': SentencePiece(500, 'unigram', sample_megabytes=0.02),
}


@pytest.fixture(scope='module')
def fitted(library):
  return {name: config.train(library) for name, config in CONFIGS.items()}


@pytest.fixture(params=list(CONFIGS))
def tokenizer(request, fitted):
  return fitted[request.param]


@settings(max_examples=100)
@given(text=st.text(), rate=st.floats(0, 1), seed=st.integers(0, 99))
@pytest.mark.parametrize('name', list(CONFIGS))
def test_drawn_pieces_spell_the_text(fitted, name, text, rate, seed):
  tokenizer = fitted[name]
  drawn, again = (tokenizer.sample(text, rate, np.random.default_rng(seed)) for _ in range(2))
  assert drawn == again
  assert tokenizer.decode(drawn) == text
  assert tokenizer.sample(text, 0.0, np.random.default_rng(seed)) == tokenizer.encode(text)


@pytest.mark.parametrize('name', ['byte-level', 'bpe', 'bpe without bytes'])
def test_merging_by_hand_is_the_librarys(fitted, library, name):
  tokenizer = fitted.get(name) or SentencePiece(500, byte_fallback=False).train(library)
  # A rate that leaves nothing out, but is not 0, which would not merge by hand.
  for line in [
    *library[0].splitlines(),
    '\u4e2d\u4e2d  a\u4e2d ',
    '   ',
    'a   b',
    'a\0b\n\t <eos>c<0x41>',
  ]:
    ids = tokenizer.sample(line, 1e-12, np.random.default_rng(0))
    assert ids == tokenizer.encode(line), line


def test_segmentations_are_drawn_by_their_likelihood(fitted):
  """All ways to cut a word are cut and weighed here; SentencePiece is asked for its scores alone."""
  tokenizer, word = fitted['unigram'], 'therefore'
  scores = {tokenizer.pieces([i])[0]: tokenizer._scores[i] for i in range(5, tokenizer.vocab_size)}
  known = {}
  for cuts in itertools.product([False, True], repeat=len(word) - 1):
    pieces = ''.join(c + ' ' * cut for c, cut in zip(word, [*cuts, False], strict=True)).split()
    if all(piece in scores for piece in pieces):
      known[tuple(pieces)] = np.exp(0.2 * sum(scores[piece] for piece in pieces))
  assert 8 < len(known) <= 64
  rng, draws = np.random.default_rng(0), 4000
  found = collections.Counter(
    tuple(tokenizer.pieces(tokenizer.sample(word, 1.0, rng))) for _ in range(draws)
  )
  expected = {pieces: draws * weight / sum(known.values()) for pieces, weight in known.items()}
  assert found.keys() <= known.keys()
  rare = [pieces for pieces, count in expected.items() if count < 5]
  assert len(rare) < len(known) / 2
  observed = [found[pieces] for pieces in known if pieces not in rare]
  wanted = np.array([expected[pieces] for pieces in known if pieces not in rare])
  assert chisquare(observed, wanted * sum(observed) / wanted.sum()).pvalue > 1e-3


def test_segmentations_are_equal_in_every_process(tokenizer):
  text = 'considered presenting consistent identifier monotonic references originally therefore'
  code = (
    'import pickle, sys; import numpy as np\n'
    'tokenizer, text = pickle.load(sys.stdin.buffer)\n'
    'rng = np.random.default_rng(3)\n'
    'print([tokenizer.sample(word, 0.9, rng) for word in text.split()])'
  )
  rng = np.random.default_rng(3)
  expected = [tokenizer.sample(word, 0.9, rng) for word in text.split()]
  done = subprocess.run(
    [sys.executable, '-c', code],
    input=pickle.dumps((tokenizer, text)),
    capture_output=True,
    check=True,
  )
  assert done.stdout.decode().strip() == str(expected)
  assert expected != [tokenizer.encode(word) for word in text.split()]


def test_merges_are_left_out_at_the_rate():
  ranks = {('a', 'b'): 0}
  rng = np.random.default_rng(0)
  whole = [apply_merges('ab', ranks, 0.3, rng) == ['ab'] for _ in range(4000)]
  assert np.mean(whole) == pytest.approx(0.7, abs=0.03)
  assert apply_merges('abab', ranks, 1.0, rng) == list('abab')
  # The second pair is merged first where the first one is left out, and then the first may follow.
  assert apply_merges('aaab', {('a', 'a'): 1, ('a', 'b'): 0}, 0.0, rng) == ['aa', 'ab']


def rows_of(tokenizer, plan, tmp_path):
  return token_rows(Texts(), 'train', tokenizer, plan, tmp_path)


def segments(row, column, tokenizer):
  name = 'segments' if column == 'tokens' else f'{column}_segments'
  numbers = row[name]
  return [tokenizer.decode(row[column][numbers == i]) for i in range(1, numbers.max() + 1)]


@pytest.mark.parametrize('rate', [0.1, 1.0])
def test_rows_keep_their_text(tokenizer, tmp_path, rate):
  rows = rows_of(tokenizer, PackPairs(50, 40), tmp_path)
  lengths = {'source': 60, 'target': 56}
  change = Resegment(tokenizer=tokenizer, lengths=lengths, rate=rate)
  longer = 0
  for i in range(len(rows)):
    row, changed = rows[i], change(rows[i], np.random.default_rng(i))
    for column, length in lengths.items():
      assert segments(changed, column, tokenizer) == segments(row, column, tokenizer)
      used = np.count_nonzero(changed[f'{column}_segments'])
      longer += used - np.count_nonzero(row[f'{column}_segments'])
      assert changed[column].shape == changed[f'{column}_positions'].shape == (length,)
      assert (changed[f'{column}_segments'][:used] > 0).all()
      ends = changed[column] == tokenizer.eos_id
      assert np.count_nonzero(ends) == changed[f'{column}_segments'].max()
      assert not changed[column][used:].any()
  assert longer > 0


def test_rate_0_is_the_row_with_padding(tokenizer, tmp_path):
  row = rows_of(tokenizer, ConcatenateAndSplit(24), tmp_path)[0]
  change = SampledPieces(rate=0.5).transform(tokenizer, {'tokens': 30}, train=False)
  changed = change(row, np.random.default_rng(0))
  for name, values in row.items():
    assert changed[name].tolist() == [*values.tolist(), *[0] * 6]


def test_tokens_without_another_segmentation_are_unchanged(fitted):
  tokenizer = fitted['byte-level']
  # A row that begins and ends inside of a character, and a word in pieces that nothing encodes so.
  ids = np.array([*tokenizer.encode('\u4e2d')[1:], *tokenizer.encode('h'), *tokenizer.encode('e')])
  row = {'tokens': ids, 'segments': np.ones_like(ids), 'positions': np.arange(len(ids))}
  change = Resegment(tokenizer=tokenizer, lengths={'tokens': 40}, rate=1.0)
  assert change(row, np.random.default_rng(0))['tokens'][: len(ids)].tolist() == ids.tolist()


def test_batches_are_a_function_of_seed_and_step(tokenizer, tmp_path):
  pieces = SampledPieces(rate=0.3, room=1.5)
  rows = rows_of(tokenizer, ConcatenateAndSplit(pieces.planned(48)), tmp_path)
  change = pieces.transform(tokenizer, {'tokens': 48}, train=True)
  batches = Batches(rows, change, batch_size=4, seed=3)
  halves = [
    Batches(rows, change, batch_size=4, seed=3, process_index=i, process_count=2) for i in (0, 1)
  ]
  for step in (0, 5):
    again = np.concatenate([half[step]['tokens'] for half in halves])
    assert (batches[step]['tokens'] == again).all()
  epochs = [change(rows[0], np.random.default_rng([3, 0, e, 0]))['tokens'] for e in range(4)]
  assert len({tokens.tobytes() for tokens in epochs}) > 1
  plain = pieces.transform(tokenizer, {'tokens': 48}, train=False)
  evaluated = evaluation_batches(rows, plain, 4)[0]
  assert (evaluated['tokens'][0][:32] == rows[0]['tokens']).all()


def test_tokenizers_with_a_unique_segmentation_are_errors(library):
  for tokenizer in (Bytes().train([]), WordPiece(400).train(library)):
    with pytest.raises(UserError, match='cannot sample segmentations'):
      SampledPieces().transform(tokenizer, {'tokens': 8}, train=True)
    SampledPieces().transform(tokenizer, {'tokens': 8}, train=False)
