"""Agreement of alignments: the dictionary against plain loops, the weights against recorded arrays of single pairs."""

import collections
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.data import Bytes
from t2x.data.sources.base import NoSource
from t2x.layers import MLP, MultiHeadAttention, RoPE, TokenEmbedding
from t2x.models import Block, Decoder, Encoder, EncoderDecoder, Stack
from t2x.tasks import AlignmentAgreement, Translation, alignments
from t2x.tasks.alignments import Dictionary, Words, _weights, near_diagonal
from t2x.tasks.evaluators import Evaluated, Evaluation
from t2x.tasks.inspection import Inspection, source_readers


def ids(*tokens):
  return np.array(tokens, np.int32)


def pairs_of(rng, count):
  """Pairs whose target has token s + 10 for each source token s, and a frequent token 30."""
  pairs = []
  for _ in range(count):
    source = rng.integers(0, 6, rng.integers(1, 6)).astype(np.int32)
    pairs.append((source, np.append(source[::-1] + 10, 30).astype(np.int32)))
  return pairs


def in_loops(pairs, num_steps):
  """Expectation maximisation of IBM model 1 as in the algorithm of the paper; -1 is the empty word."""
  t = collections.defaultdict(lambda: 1.0)
  for _ in range(num_steps):
    counts, totals = collections.Counter(), collections.Counter()
    for source, target in pairs:
      words = [*source.tolist(), -1]
      for f in target.tolist():
        norm = sum(t[e, f] for e in words)
        for e in words:
          counts[e, f] += t[e, f] / norm
          totals[e] += t[e, f] / norm
    t = {(e, f): count / totals[e] for (e, f), count in counts.items()}
  return t


def test_the_dictionary_equals_expectation_maximisation_in_loops():
  pairs = pairs_of(np.random.default_rng(0), 20)
  dictionary = Dictionary(pairs, 4)
  expected = in_loops(pairs, 4)
  assert dictionary.probabilities.keys() == expected.keys()
  for key, value in expected.items():
    assert dictionary.probabilities[key] == pytest.approx(value, rel=1e-12)


def test_a_token_is_linked_to_all_its_likeliest_translations():
  dictionary = Dictionary(pairs_of(np.random.default_rng(0), 50), 10)
  assert dictionary.links(ids(2, 3, 2, 4), 12).tolist() == [True, False, True, False]
  # The likeliest translation is the empty word; the token is not in the dictionary.
  assert not dictionary.links(ids(2, 3), 30).any()
  assert not dictionary.links(ids(2, 3), 99).any()


def test_the_diagonal_joins_the_first_and_the_last_tokens():
  near = near_diagonal(5, 3, 1.0)
  assert near.tolist() == [
    [True, True, False, False, False],
    [False, True, True, True, False],
    [False, False, False, True, True],
  ]
  assert near_diagonal(3, 1, 0.0).tolist() == [[True, False, False]]


class Pairs(NoSource):
  """No examples; the rows are given."""

  def splits(self):
    return ('train', 'validation')


BYTES = Bytes().fit(lambda: ())
TASK = Translation(source=Pairs(), tokenizer=Bytes(), source_length=16, target_length=16).bound(
  BYTES
)


def row_of(*pairs):
  """Packs pairs of texts into a row."""
  row = {}
  for side, index in (('source', 0), ('target', 1)):
    tokens = [[*BYTES.encode(pair[index]), BYTES.eos_id] for pair in pairs]
    for name, parts in (
      ('', tokens),
      ('_segments', [np.full(len(t), n + 1) for n, t in enumerate(tokens)]),
      ('_positions', [np.arange(len(t)) for t in tokens]),
    ):
      array = np.zeros(16, np.int32)
      array[: sum(map(len, parts))] = np.concatenate(parts)
      row[side + name] = array
  return row


def test_a_word_has_its_pieces_and_a_number_by_its_text():
  words = Words(BYTES)
  numbers, belongs = words(np.array([*BYTES.encode('ab,b b ab'), BYTES.eos_id]))
  assert numbers.tolist() == [0, 1, 2, 2, 0, 3]
  expected = [[0, 1], [2], [3], [4, 5], [6, 7, 8], [9]]
  assert [np.flatnonzero(own).tolist() for own in belongs] == expected
  assert words(np.array(BYTES.encode('b')))[0].tolist() == [2]


def test_metrics_are_fractions_of_target_words_whose_strongest_source_word_agrees(monkeypatch):
  train = [row_of(('aa b', 'x yy'), ('aa', 'x')), row_of(('b c', 'yy z'))] * 9
  # Tokens of the sources: c, eos, then b, ' aa', ' c', ' aa', eos from 2 on.
  held_out = row_of(('c', 'z'), ('b aa c aa', 'yy x w'))
  weights = np.zeros((16, 16))
  weights[0, 0], weights[0, 2] = 1, 9  # z to c, and more to another pair.
  weights[2, 2], weights[3, 7] = 2, 3  # yy to ' c', with the larger sum.
  weights[4:6, 2], weights[4:6, 8:11] = 2, 1  # ' x' to the last ' aa', with the larger sum.
  weights[6:8, 10] = 1  # ' w' to the last ' aa'.
  model = model_of(functools.partial(MultiHeadAttention, num_heads=2))
  evaluated = Evaluated(
    task=TASK,
    watched=iter,
    model=lambda: model,
    rows={'train': train, 'validation': [held_out]}.__getitem__,
    evaluation=lambda *_: Evaluation({}),
    batch_size=1,
  )
  monkeypatch.setattr(alignments, '_weights', lambda *_: jnp.asarray(weights)[None])
  metrics = AlignmentAgreement(num_steps=10, width=0.5)(evaluated).metrics
  # By the dictionary: 'z', 'x'. On the diagonal (sources 0, 4/3, 8/3 and 4, without eos): 'z', 'w'.
  assert metrics['words'] == 4
  assert metrics['dictionary'] == pytest.approx(2 / 4)
  assert metrics['diagonal'] == pytest.approx(2 / 4)
  assert metrics['either'] == pytest.approx(3 / 4)
  # Of the 2 and 5 source words one, one, two and none are translations.
  assert metrics['chance_dictionary'] == pytest.approx((1 / 2 + 1 / 5 + 2 / 5 + 0) / 4)


def model_of(cross):
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2),
    feed_forward=functools.partial(MLP, hidden_dim=8),
  )
  stacks = [
    functools.partial(Stack, num_layers=2, blocks=[build])
    for build in (block, functools.partial(block, cross=cross))
  ]
  return EncoderDecoder(
    d_model=8,
    embedding=functools.partial(TokenEmbedding, vocab_size=261),
    encoder=functools.partial(Encoder, stack=stacks[0], encoding=RoPE),
    decoder=functools.partial(Decoder, stack=stacks[1], encoding=RoPE),
    rngs=nnx.Rngs(0),
  )


def test_weights_of_packed_pairs_are_the_recorded_attention_of_each_pair():
  model = model_of(functools.partial(MultiHeadAttention, num_heads=2))
  pairs = [('ab', 'xyz'), ('c', 'wv')]
  batch = {name: jnp.asarray(array[None]) for name, array in row_of(*pairs).items()}
  weights = np.asarray(_weights(TASK, source_readers(model, 'decoder'), model, batch))[0]
  inspection = Inspection(model, BYTES)
  row = column = 0
  for source, target in pairs:
    layers = inspection.layers('cross.probabilities', source, target)
    expected = np.mean([layer[0].mean(axis=0) for layer in layers], axis=0)
    height, width = expected.shape
    got = weights[row : row + height, column : column + width]
    np.testing.assert_allclose(got, expected, atol=1e-6)
    row, column = row + height, column + width


def test_a_decoder_that_does_not_attend_to_the_source_is_refused():
  with pytest.raises(UserError, match='no sublayer of the decoder attends to the source'):
    AlignmentAgreement().check(TASK, model_of(None))
