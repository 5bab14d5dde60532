"""The generation loop: prompts of any length, independent rows, no superfluous steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from history_model import greedy_by_hand, history_model

from t2x.base.errors import UserError
from t2x.decode import Beam, Greedy, Sampling, generate

EOS, PAD = 1, 0
PROMPTS = [[2, 3, 4], [3], [4, 4, 2, 3, 2], [2, 2]]


def ragged(prompts, width=5):
  ids = np.full((len(prompts), width), PAD, np.int32)
  for row, prompt in zip(ids, prompts, strict=True):
    row[: len(prompt)] = prompt
  return ids, np.array([len(p) for p in prompts], np.int32)


def run(model, prompts, **kwargs):
  kwargs = {'max_new_tokens': 7, 'eos_id': EOS, 'pad_id': PAD} | kwargs
  return generate(model, *ragged(prompts), **kwargs)


def assert_same(one, other):
  jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(one), jax.tree.leaves(other))


def rows(generated, index):
  return [np.asarray(leaf)[index] for leaf in jax.tree.leaves(generated)]


def sequence(generated, b, r=0):
  return generated.tokens[b, r, : generated.lengths[b, r]].tolist()


def test_greedy_equals_argmax_without_cache_row_by_row():
  model = history_model()
  generated = run(model, PROMPTS)
  for b, prompt in enumerate(PROMPTS):
    tokens, log_probs = greedy_by_hand(model, prompt, 7, EOS)
    assert sequence(generated, b) == tokens
    np.testing.assert_allclose(generated.log_probs[b, 0, : len(tokens)], log_probs, rtol=1e-4)


@pytest.mark.parametrize('strategy', [Greedy(), Beam(width=3)])
def test_ragged_prompts_equal_single_prompts(strategy):
  model = history_model(seed=3)
  together = run(model, PROMPTS, strategy=strategy)
  for b, prompt in enumerate(PROMPTS):
    alone = run(model, [prompt], strategy=strategy)
    assert_same(rows(together, [b]), alone)


@pytest.mark.parametrize('strategy', [Greedy(), Beam(width=3)])
def test_permuted_prompts_give_permuted_sequences(strategy):
  model, order = history_model(), [2, 0, 3, 1]
  straight = run(model, PROMPTS, strategy=strategy)
  permuted = run(model, [PROMPTS[i] for i in order], strategy=strategy)
  assert_same(rows(straight, order), permuted)


@pytest.mark.parametrize('strategy', [Greedy(), Sampling(), Beam(width=3)])
def test_behind_the_end_is_padding_without_log_probability(strategy):
  num_return = 1 if strategy == Greedy() else 3
  model = history_model(seed=1)
  key = jax.random.key(0)
  generated = run(model, PROMPTS, strategy=strategy, num_return=num_return, key=key, pad_id=4)
  assert generated.tokens.shape == (4, num_return, 7)
  behind = np.arange(7) >= np.asarray(generated.lengths)[..., None]
  assert behind.any()
  assert (np.asarray(generated.tokens)[behind] == 4).all()
  assert (np.asarray(generated.log_probs)[behind] == 0).all()
  ends = np.asarray(generated.tokens) == EOS
  assert (ends.sum(-1) <= 1).all()
  assert (ends.argmax(-1) + 1 == generated.lengths)[ends.any(-1)].all()
  np.testing.assert_allclose(generated.sum_log_probs, generated.log_probs.sum(-1), rtol=1e-6)


@pytest.mark.parametrize('strategy', [Greedy(), Sampling()])
def test_stops_when_all_are_done(strategy):
  passes = []
  model = history_model(seen=lambda ids: passes.append(ids.shape))
  generated = run(model, PROMPTS, max_new_tokens=40, strategy=strategy, key=jax.random.key(2))
  jax.effects_barrier()
  longest = int(generated.lengths.max())
  assert longest < 40
  # One pass for the prompts, which gives the first token, and one for each token after it.
  assert passes == [(4, 8), *[(4, 1)] * (longest - 1)]


def test_max_length_counts_the_prompt():
  model = history_model(seed=5)
  cut = run(model, PROMPTS, max_new_tokens=None, max_length=8)
  free = run(model, PROMPTS)
  for b, prompt in enumerate(PROMPTS):
    assert sequence(cut, b) == sequence(free, b)[: 8 - len(prompt)]
  assert (cut.lengths < free.lengths).any()


def test_other_prompts_of_the_same_padded_width_compile_nothing():
  traces = []
  model = history_model(traced=lambda: traces.append(1))
  key = jax.random.key(0)
  run(model, PROMPTS, strategy=Sampling(), key=key)
  first = len(traces)
  run(model, [p[:1] for p in PROMPTS], strategy=Sampling(), key=jax.random.key(1))
  prompts, lengths = ragged(PROMPTS, width=8)
  other = jax.tree.map(lambda leaf: leaf + 1, model)
  common = {'max_new_tokens': 7, 'strategy': Sampling(), 'eos_id': EOS, 'pad_id': PAD, 'key': key}
  generate(other, prompts, lengths, **common)
  generate(other, prompts[:, :6], lengths, **common)
  assert first and len(traces) == first


def test_further_inputs_reach_the_cache():
  model = history_model()
  source = np.array([0, 5, 17, 101], np.int32)
  generated = run(model, [[2]] * 4, offset=source, strategy=Beam(width=3))
  plain = run(model, [[2]] * 4, strategy=Beam(width=3))
  np.testing.assert_array_equal(generated.tokens[0], plain.tokens[0])
  assert len({tuple(sequence(generated, b)) for b in range(4)}) > 1


def test_a_model_that_knows_few_positions_is_fed_no_others():
  model = history_model(max_length=11)
  generated = run(model, PROMPTS, max_new_tokens=7)
  assert_same(generated, run(history_model(), PROMPTS))
  with pytest.raises(UserError, match='require 12 positions, the model has 11'):
    run(model, PROMPTS, max_new_tokens=8)


def test_tokens_of_low_precision_logits_have_float32_log_probabilities():
  model = history_model()
  rough = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model)
  exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rough)
  assert_same(run(rough, PROMPTS), run(exact, PROMPTS))


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'num_return': 2}, 'Greedy returns one sequence per prompt'),
    ({'num_return': 0}, 'num_return = 0 must be at least 1'),
    (
      {'strategy': Beam(width=2), 'num_return': 3},
      'Beam.width = 2 must be at least num_return = 3',
    ),
    ({'strategy': Sampling()}, 'requires a key'),
    ({'max_new_tokens': None}, 'max_new_tokens or max_length'),
    ({'max_new_tokens': 0}, 'max_new_tokens = 0 must be at least 1'),
    ({'max_length': 5}, 'max_length = 5 must be greater than the longest prompt, 5 tokens'),
  ],
)
def test_unsatisfiable_settings_are_errors(kwargs, message):
  with pytest.raises(UserError, match=message):
    run(history_model(), PROMPTS, **kwargs)


def test_an_empty_prompt_is_an_error():
  with pytest.raises(UserError, match='lengths must be from 1 to the width'):
    run(history_model(), [[2], []])


@pytest.mark.parametrize('make', [Greedy, Sampling, Beam])
def test_a_sequence_ends_at_any_of_the_strategys_end_tokens(make):
  model, ends = history_model(vocab=9, seed=1, scale=0.5), {2, 5}
  strategy = make(eos_ids=tuple(ends))
  generated = run(model, PROMPTS * 8, strategy=strategy, key=jax.random.key(0))
  lasts = set()
  for b in range(len(PROMPTS) * 8):
    tokens = sequence(generated, b)
    assert not ends & set(tokens[:-1])
    assert tokens[-1] in ends or len(tokens) == 7
    lasts.add(tokens[-1])
  assert lasts & ends
  assert EOS not in ends


def test_a_negative_end_token_is_refused():
  with pytest.raises(UserError, match=r'Sampling.eos_ids = \(3, -1\)'):
    Sampling(eos_ids=[3, -1])


@pytest.mark.parametrize('make', [Greedy, Sampling, Beam])
def test_only_allowed_tokens_are_chosen_with_the_probabilities_of_the_model(make):
  """Beside those of a sequence with the same tokens, whose model sees no mask."""
  model, ends = history_model(vocab=9, seed=1, scale=0.5), (0,)
  allowed = np.random.default_rng(0).random((4, 7, 9)) < 0.4
  allowed[..., 0], allowed[..., 7], allowed[:, 2] = False, True, np.arange(9) == 3
  # Ids beyond the width are not allowed.
  allowed = allowed[..., :8]
  settings = {'strategy': make(eos_ids=ends), 'key': jax.random.key(0)}
  generated = run(model, PROMPTS, allowed=allowed, **settings)
  tokens = np.asarray(generated.tokens)[:, 0]
  assert (tokens[:, 2] == 3).all()
  assert allowed[np.arange(4)[:, None], np.arange(7), tokens].all()
  forced = run(
    model, PROMPTS, allowed=np.arange(9) == tokens[..., None], strategy=Greedy(eos_ids=ends)
  )
  np.testing.assert_array_equal(forced.tokens[:, 0], tokens)
  np.testing.assert_allclose(forced.log_probs, generated.log_probs, atol=1e-6)
  assert not np.isneginf(np.asarray(generated.log_probs)).any()


def test_allowed_tokens_of_other_steps_are_refused():
  with pytest.raises(UserError, match=r'must be \(4, 7, ids\)'):
    run(history_model(), PROMPTS, allowed=np.ones((4, 6, 9), bool))
  with pytest.raises(UserError, match='at least one token for each step'):
    run(history_model(), PROMPTS, allowed=np.zeros((4, 7, 9), bool))
