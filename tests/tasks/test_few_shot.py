"""Few-shot evaluation: prompts, scores by a scripted model, likelihoods against NumPy, and what is refused."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.data import Bytes
from t2x.data.sources.base import NoSource
from t2x.layers import MLP, Causal, MultiHeadAttention, Prefix, RoPE, TokenEmbedding, Tokens
from t2x.models import Block, Decoder, LanguageModel, Stack
from t2x.tasks import CausalLM, ExactMatch, FewShot, LikeliestAnswer, LikeliestLabel, Translation
from t2x.tasks import few_shot as few_shot_module
from t2x.tasks.likelihoods import Likelihood, cut, encode_pair, log_likelihoods, stop_ids

TOKENIZER = Bytes().train(())
CAPITALS = {'Chad': 'N', 'Cuba': 'H', 'Fiji': 'S', 'Iran': 'T', 'Laos': 'V', 'Mali': 'B'}


@dataclasses.dataclass(frozen=True)
class Pairs(NoSource):
  """Six pairs, in both splits."""

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    return [{'source': source, 'target': target} for source, target in CAPITALS.items()]


def task():
  return CausalLM(source=Pairs(), tokenizer=Bytes(), length=32).bound(TOKENIZER)


def evaluated():
  return types.SimpleNamespace(task=task(), watched=iter, model=lambda: None)


def few_shot(**settings):
  return FewShot(source=Pairs(), **({'k': 2} | settings))


def test_prompts_depend_only_on_the_seed_and_the_row():
  questions = few_shot().questions()
  assert questions == few_shot().questions()
  assert questions[3] == few_shot(num_examples=2).questions()[1]
  assert questions != few_shot(seed=1).questions()
  first = questions[0]
  assert first.prompt.endswith('\nChad = ')
  assert (first.prompt.count('\n'), first.answer, first.stop) == (2, 'N', '\n')


def test_no_example_is_in_its_own_prompt():
  for seed in range(20):
    questions = few_shot(k=5, query_split='train', seed=seed).questions()
    for name, question in zip(CAPITALS, questions, strict=True):
      assert question.prompt.count(name) == 1
      assert {line[:4] for line in question.prompt.splitlines()} == set(CAPITALS)


def test_templates_and_instructions_make_the_prompt():
  template = 'Q: {source}\nA: {target}\n\n'
  question = few_shot(k=0, template=template, instruction='Capitals.\n').questions()[1]
  assert question.prompt == 'Capitals.\nQ: Cuba\nA: '
  assert question.stop == '\n\n'


@pytest.fixture
def scripted(monkeypatch):
  """A model that knows all capitals but those of Fiji and Laos, for which it answers X."""
  answers = CAPITALS | {'Fiji': 'X', 'Laos': 'X'}

  def name(ids):
    return TOKENIZER.decode(ids).splitlines()[-1][:4]

  def generate(model, rows, tokenizer, *, marks, strategy, max_new_tokens):
    assert {len(rows), max_new_tokens} == {4, 9}
    assert TOKENIZER.encode('\n')[0] in strategy.eos_ids
    text = '\nCuba = H'
    return [[{'text': f' {answers[name(ids)]}{text}', 'score': 0.0}] for ids in rows]

  def likelihoods(model, pairs, *, pad_id, batch_size, marks, watched):
    return [
      Likelihood(0.0 if TOKENIZER.decode(ids).strip() == answers[name(prompt)] else -1.0, False)
      for prompt, ids in pairs
    ]

  monkeypatch.setattr(few_shot_module, 'continued', generate)
  monkeypatch.setattr(few_shot_module, 'answers', lambda generated, tokenizer: generated)
  monkeypatch.setattr(few_shot_module, 'log_likelihoods', likelihoods)


def test_generated_answers_end_at_the_text_after_the_answer(scripted):
  result = few_shot(scoring=[ExactMatch(num_tokens=9)], batch_size=4)(evaluated())
  assert result.metrics == {'examples': 6.0, 'exact_match': 4 / 6}
  assert [sample['ExactMatch'] for sample in result.samples] == ['N', 'H', 'X', 'T', 'X', 'B']


def test_the_likeliest_candidate_is_chosen(scripted):
  labels = [*CAPITALS.values(), 'X']
  result = few_shot(scoring=[LikeliestLabel(labels=labels)], batch_size=4)(evaluated())
  assert result.metrics['choice_accuracy'] == 4 / 6
  assert result.metrics['chance'] == pytest.approx(1 / 7)
  drawn = few_shot(scoring=[LikeliestAnswer(num_wrong=5)], batch_size=4)(evaluated())
  # Without an answer X, all candidates are equal: none is chosen.
  assert [sample['LikeliestAnswer'] for sample in drawn.samples] == [*'NH', '', 'T', '', 'B']
  assert drawn.metrics['choice_accuracy'] == 4 / 6
  assert drawn.metrics['chance'] == pytest.approx(1 / 6)


def test_a_scoring_uses_its_own_number_of_wrong_answers_beside_another(scripted):
  both = few_shot(scoring=[ExactMatch(num_tokens=9), LikeliestAnswer(num_wrong=2)], batch_size=4)
  assert both(evaluated()).metrics['chance'] == pytest.approx(1 / 3)
  question = dataclasses.replace(both.questions()[0], wrong=list('abcd'))
  assert len(LikeliestAnswer(num_wrong=3).candidates(question)) == 4
  for pair in (
    [LikeliestAnswer(num_wrong=2), LikeliestAnswer(num_wrong=5)],
    [LikeliestAnswer(), LikeliestLabel(labels=['A'])],
    [ExactMatch(), ExactMatch(num_tokens=9)],
  ):
    with pytest.raises(UserError, match='two of them have the same metrics'):
      few_shot(scoring=pair)


def test_settings_without_effect_or_examples_are_refused():
  with pytest.raises(UserError, match=r'set FewShot\.query_split'):
    few_shot(split='test')
  for template in ('{source} = {target}', 'no field\n', '{source'):
    with pytest.raises(UserError, match=r'FewShot\.template'):
      few_shot(template=template)
  with pytest.raises(UserError, match='FewShot evaluates @CausalLM, not @Translation'):
    few_shot().check(Translation(source_length=8, target_length=8), None)
  spec = types.SimpleNamespace(spec=types.SimpleNamespace(max_length=40))
  with pytest.raises(
    UserError, match=r'prompt of example 0 with k = 2 needs \d+ positions, the mo'
  ):
    few_shot().check(task(), spec)
  for settings, message in (
    ({'k': 7}, "k = 7: the split 'train' of Pairs"),
    ({'query_split': 'test'}, "no split 'test'"),
    ({'template': '{source}: {answer}\n'}, r'field \{answer\}'),
    ({'scoring': [LikeliestAnswer(num_wrong=6)]}, 'has only 5 answers other than'),
  ):
    with pytest.raises(UserError, match=message):
      few_shot(**settings).questions()
  with pytest.raises(UserError, match=r"'N' is none of LikeliestLabel\.labels"):
    LikeliestLabel(labels=['A']).candidates(few_shot().questions()[0])


def decoder(pattern):
  def block(d_model, *, rngs):
    return Block(
      d_model,
      mixer=lambda d, *, rngs: MultiHeadAttention(d, num_heads=2, rngs=rngs),
      feed_forward=lambda d, *, rngs: MLP(d, hidden_dim=16, rngs=rngs),
      rngs=rngs,
    )

  def stack(d_model, *, rngs, **settings):
    return Stack(d_model, num_layers=2, blocks=[block], rngs=rngs, **settings)

  def body(d_model, *, rngs):
    return Decoder(d_model, stack=stack, encoding=RoPE, pattern=pattern, rngs=rngs)

  def embedding(d_model, *, rngs):
    return TokenEmbedding(d_model, vocab_size=261, rngs=rngs)

  model = LanguageModel(d_model=16, embedding=embedding, body=body, rngs=nnx.Rngs(0))
  return jax.tree.map(lambda a: a + 0.3 * jax.random.normal(jax.random.key(a.size), a.shape), model)


@pytest.mark.parametrize('pattern', [Causal(), Causal() | Prefix()])
def test_likelihoods_equal_a_sum_over_single_unpadded_rows(pattern):
  model = decoder(pattern)
  texts = [('ab', 'c'), ('the longer prompt', ' and its continuation'), ('', 'xyz'), ('a ', 'c')]
  pairs = [encode_pair(TOKENIZER, *text) for text in texts]
  pairs.append((pairs[0][0], _greedy(model, pairs[0][0], 3)))
  found = log_likelihoods(model, pairs, pad_id=0, batch_size=3)
  for result, (prompt, ids) in zip(found, pairs, strict=True):
    logits = _logits(model, prompt, ids)[len(prompt) - 1 :]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = log_probs[np.arange(len(ids)), ids].sum()
    assert result.log_prob == pytest.approx(expected, abs=1e-4)
    assert result.greedy == (logits.argmax(-1).tolist() == list(ids))
  assert found[-1].greedy


def _logits(model, prompt, ids):
  row = jnp.array([[*prompt, *ids[:-1]]])
  marks = {}
  if model.spec.patterns[0] != Causal():
    marks = {'prefix': jnp.arange(row.shape[1])[None] < len(prompt)}
  return np.asarray(_run(model, row, Tokens.row(row.shape[1], marks=marks)).x[0], np.float64)


@jax.jit
def _run(model, ids, tokens):
  return model(ids, tokens=tokens)


def _greedy(model, prompt, count):
  ids = []
  for _ in range(count):
    ids.append(int(_logits(model, prompt, [*ids, 0])[-1].argmax()))
  return ids


def test_a_row_beyond_the_positions_of_the_model_is_refused():
  model = types.SimpleNamespace(spec=types.SimpleNamespace(max_length=4))
  with pytest.raises(UserError, match='has 5 tokens, the model has 4 positions'):
    log_likelihoods(model, [([3, 9], [9, 9, 9, 9])], pad_id=0, batch_size=1)


def test_white_space_before_a_continuation_belongs_to_it():
  prompt, ids = encode_pair(TOKENIZER, 'a b ', 'c')
  assert TOKENIZER.decode(prompt) == 'a b'
  assert TOKENIZER.decode(ids) == ' c'
  assert encode_pair(TOKENIZER, '', 'c') == ([TOKENIZER.bos_id], TOKENIZER.encode('c'))
  with pytest.raises(UserError, match='has no tokens'):
    encode_pair(TOKENIZER, 'a', '')


def test_generation_ends_at_tokens_that_contain_a_stop():
  assert stop_ids(TOKENIZER, ('\n', 'b')) == (1, *TOKENIZER.encode('\n'), *TOKENIZER.encode('b'))
  assert cut('one. two\nthree', ['\n', '. ']) == 'one'
  assert cut('one', ['\n']) == 'one'
