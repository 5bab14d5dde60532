"""Marked tokens in tasks of texts: training, refusals, causality, generation and log-likelihoods."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tasks
from flax import nnx

import t2x.tasks
from t2x.base.errors import UserError
from t2x.data import Bytes, TextFiles
from t2x.decode import Beam, Greedy, generate
from t2x.layers import (
  MLP,
  Causal,
  Marked,
  MultiHeadAttention,
  Or,
  RoPE,
  TokenEmbedding,
  Tokens,
  Window,
  normal,
)
from t2x.models import Block, Decoder, Encoder, LanguageModel, LMHead, SequenceClassifier, Stack
from t2x.models.classifiers import Classifier
from t2x.tasks import MarkStarts, MarkTexts
from t2x.tasks.likelihoods import log_likelihoods
from t2x.tasks.sequence_classification import SequenceClassification

part = functools.partial
NEWLINE, LENGTH = Bytes().fit(lambda: iter(())).encode('\n')[0], 32
STARTS = {'starts': MarkStarts()}
LOCAL = Or(Window(3), Marked('starts'))


def language_model(body=Decoder, pattern=LOCAL, head=LMHead, seed=0, **settings):
  attention = part(MultiHeadAttention, num_heads=2, kernel_init=normal(0.5))
  feed_forward = part(MLP, hidden_dim=16, kernel_init=normal(0.5))
  block = part(Block, mixer=attention, feed_forward=feed_forward, pattern=pattern)
  return LanguageModel(
    d_model=16,
    embedding=part(TokenEmbedding, vocab_size=264, init=normal(1.0)),
    body=part(body, stack=part(Stack, num_layers=1, blocks=[block]), encoding=RoPE, **settings),
    head=part(head, init=normal(1.0)) if head is LMHead else head,
    rngs=nnx.Rngs(seed),
  )


def bound(task):
  return task.bound(task.tokenizer.fit(lambda: iter(())))


def causal_lm(marks=STARTS):
  return bound(
    t2x.tasks.CausalLM(
      source=TextFiles(train='none'), tokenizer=Bytes(), length=LENGTH, marks=marks
    )
  )


def packed_batch(lengths=((14, 12), (20, 9)), seed=0):
  """Two documents of letters and ends of lines per row, then padding."""
  rng = np.random.default_rng(seed)
  tokens, segments, positions = (np.zeros((len(lengths), LENGTH), np.int32) for _ in range(3))
  for b, row in enumerate(lengths):
    start = 0
    for number, length in enumerate(row, start=1):
      here = slice(start, start + length)
      tokens[b, here] = rng.choice([NEWLINE, 104, 105, 106], length, p=[0.2, 0.3, 0.3, 0.2])
      segments[b, here], positions[b, here] = number, np.arange(length)
      start += length
  return {'tokens': tokens, 'segments': segments, 'positions': positions}


def predictions(task, model, batch):
  arrays = {name: jnp.asarray(array) for name, array in batch.items()}
  return np.asarray(task.predictions(model, arrays, None)[0])


def test_marked_tokens_are_visible_only_to_later_tokens():
  """Perturbs each input token of a document: only queries that see it change."""
  task, model = causal_lm(), language_model()
  batch = packed_batch(((26,),))
  base = predictions(task, model, batch)
  # The input at i + 1 is the token i.
  ids = [-1, *batch['tokens'][0, :26]]
  starts = [i == 0 or ids[i - 1] == NEWLINE for i in range(26)]
  for i in range(1, 26):
    if NEWLINE in (ids[i], ids[i] + 1):
      continue  # It would change the marks.
    changed = {name: array.copy() for name, array in batch.items()}
    changed['tokens'][0, i - 1] = ids[i] + 1
    differs = np.abs(predictions(task, model, changed) - base)[0, :26].max(axis=-1) > 1e-6
    expected = [j >= i and (j - i < 3 or starts[i] or starts[j]) for j in range(26)]
    assert differs.tolist() == expected


def test_packed_documents_equal_separate_rows():
  task, model = causal_lm(), language_model()
  batch = packed_batch()
  together = predictions(task, model, batch)
  for b, row in enumerate(((14, 12), (20, 9))):
    start = 0
    for length in row:
      alone = {name: np.zeros((1, LENGTH), np.int32) for name in batch}
      alone['tokens'][0, :length] = batch['tokens'][b, start : start + length]
      alone['segments'][0, :length], alone['positions'][0, :length] = 1, np.arange(length)
      expected = predictions(task, model, alone)[0, :length]
      np.testing.assert_allclose(together[b, start : start + length], expected, atol=2e-5)
      start += length


def by_hand(model, task, prompt, num_tokens):
  """Greedy decoding without a cache."""
  ids = list(prompt)
  forward = jax.jit(lambda row, tokens: model(row, tokens=tokens).x)
  for _ in range(num_tokens):
    row = jnp.asarray([ids + [0] * (LENGTH - len(ids))])
    segments = jnp.asarray([[1] * len(ids) + [0] * (LENGTH - len(ids))])
    marks = task.token_marks.of_rows(row, segments)
    tokens = Tokens.row(LENGTH, segments=segments, marks=marks)
    logits = forward(row, tokens)[0, len(ids) - 1]
    ids.append(int(jnp.argmax(logits)))
  return ids[len(prompt) :]


@pytest.mark.parametrize('strategy', [Greedy(), Beam(width=1)], ids=['greedy', 'beam'])
def test_generation_marks_new_tokens(strategy):
  # The marks of most tokens, so that the generated ones have some.
  marks = {'starts': MarkStarts(after=('\n', *map(chr, range(128, 140)), *'aeiouAEIOU03579'))}
  task, model = causal_lm(marks), language_model(seed=3)
  prompts = [[3, 104, NEWLINE, 105, 106], [3, 110, 111]]
  ids, lengths = np.zeros((2, 8), np.int32), np.array([5, 3])
  for row, prompt in zip(ids, prompts, strict=True):
    row[: len(prompt)] = prompt
  settings = {'max_new_tokens': 16, 'strategy': strategy, 'eos_id': None, 'pad_id': 0}
  generated = generate(model, ids, lengths, marks=task.token_marks, **settings)
  others = generate(model, ids, lengths, marks=causal_lm().token_marks, **settings)
  for b, prompt in enumerate(prompts):
    assert generated.tokens[b, 0].tolist() == by_hand(model, task, prompt, 16)
  assert not np.array_equal(generated.tokens, others.tokens)


def test_beams_have_the_marks_of_their_own_tokens():
  """The log-probabilities of each beam equal those of one pass over its row."""
  marks = {'starts': MarkStarts(after=('\n', *'aeiouAEIOU03579'))}
  task, model = causal_lm(marks), language_model(seed=5)
  prompt = [3, 104, NEWLINE, 105]
  generated = generate(
    model,
    np.array([prompt]),
    np.array([4]),
    max_new_tokens=12,
    strategy=Beam(width=4),
    num_return=4,
    eos_id=None,
    pad_id=0,
    marks=task.token_marks,
  )
  for tokens, log_prob in zip(generated.tokens[0], generated.sum_log_probs[0], strict=True):
    pair = [(prompt, tokens.tolist())]
    (expected,) = log_likelihoods(model, pair, pad_id=0, batch_size=1, marks=task.token_marks)
    np.testing.assert_allclose(log_prob, expected.log_prob, rtol=1e-4)


def test_generation_without_the_marks_is_refused():
  with pytest.raises(UserError, match="reads the mark 'starts', which generation cannot compute"):
    generate(language_model(), np.array([[3]]), np.array([1]), max_new_tokens=2, eos_id=1, pad_id=0)


def test_prompts_are_continued_with_marks():
  (answer,), *_ = causal_lm().generate(
    language_model(), ['one\ntwo'], strategy=Greedy(), max_new_tokens=4
  )
  assert len(answer['tokens']) <= 4


def test_a_mark_that_no_pattern_reads_is_refused():
  with pytest.raises(UserError, match=r"CausalLM.marks sets 'starts', which no attention pattern"):
    causal_lm().check_model(language_model(pattern=Window(3)))


def test_a_pattern_whose_mark_no_rule_sets_is_refused():
  with pytest.raises(UserError, match=r"reads Tokens.marks\['starts'\]"):
    predictions(causal_lm({}), language_model(), packed_batch())


def test_the_name_prefix_is_refused():
  with pytest.raises(UserError, match=r"CausalLM.marks cannot set 'prefix'"):
    causal_lm({'prefix': MarkStarts()}).check_model(language_model())


def test_marks_outside_the_causal_pattern_are_refused():
  model = language_model(pattern=Causal() | Marked('starts'), body=Encoder)
  with pytest.raises(UserError, match='attends to later tokens'):
    causal_lm().check_model(model)


def test_texts_that_no_token_contains_are_refused():
  with pytest.raises(UserError, match=r'no token of the tokenizer contains one of MarkTexts.texts'):
    _ = causal_lm({'starts': MarkTexts(texts=('ab',))}).token_marks


@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  tiny_tasks.write_data(folder)
  return tiny_tasks.make(folder)


@pytest.mark.parametrize('name', ['CausalLM', 'MaskedLM', 'SequenceClassification'])
def test_tasks_with_marks_train(tasks, name):
  rule = {'starts': MarkStarts(after=('e',))}
  task = dataclasses.replace(tasks[name], tokenizer=Bytes(), pieces=None, marks=rule)
  task = task.bound(task.fit_tokenizer())
  head = LMHead
  if isinstance(task, SequenceClassification):
    head = part(SequenceClassifier, classifier=part(Classifier, num_classes=2))
  body = Decoder if name == 'CausalLM' else Encoder
  model = language_model(body=body, head=head)
  task.check_model(model)
  losses = tiny_tasks.trained_losses(task, model)
  assert losses[-1] < 0.8 * losses[0]
