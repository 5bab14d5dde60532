"""Complete decoding against transformers' `generate`: GPT-2, T5 and BART with the same weights, prompts
and sources of several lengths."""

import jax.numpy as jnp
import numpy as np
import pytest

from t2x.decode import generate
from t2x.decode.generation_config import strategy_of
from t2x.layers import Tokens

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

VOCAB, WIDTH, ROOM, BATCH, START = 40, 6, 12, 6, 2
LENGTHS = np.array([6, 1, 4, 6, 2, 3])
IDS = np.where(
  np.arange(WIDTH) < LENGTHS[:, None],
  np.random.default_rng(0).integers(4, VOCAB, (BATCH, WIDTH)),
  0,
)
VALID = IDS != 0


# Placeholder in settings for the token from `end_of`.
END = 'end'


def gpt2():
  config = transformers.GPT2Config(
    n_embd=24, n_layer=2, n_head=4, n_positions=32, vocab_size=VOCAB, bos_token_id=3, eos_token_id=1
  )
  return transformers.GPT2LMHeadModel(config)


def t5():
  config = transformers.T5Config(
    d_model=24,
    d_kv=8,
    d_ff=32,
    num_layers=2,
    num_heads=3,
    vocab_size=VOCAB,
    decoder_start_token_id=START,
  )
  return transformers.T5ForConditionalGeneration(config)


def bart():
  config = transformers.BartConfig(
    d_model=24,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=32,
    vocab_size=VOCAB,
    pad_token_id=0,
    bos_token_id=3,
    eos_token_id=1,
    forced_eos_token_id=1,
    decoder_start_token_id=START,
  )
  return transformers.BartForConditionalGeneration(config)


MAKE = {'GPT-2': gpt2, 'T5': t5, 'BART': bart}
PLAIN = [
  {},
  {'num_beams': 4, 'length_penalty': 0.6},
  {'num_beams': 4, 'length_penalty': 1.0, 'early_stopping': 'never'},
]
LESS_REPETITION = {'repetition_penalty': 1.4, 'no_repeat_ngram_size': 2, 'min_new_tokens': 3}
BEAMS_WITH_ALL = {
  'num_beams': 4,
  'length_penalty': 2.0,
  'repetition_penalty': 1.3,
  'no_repeat_ngram_size': 3,
  'bad_words_ids': [[0]],
  'min_new_tokens': 3,
  'suppress_tokens': [5, 9],
}
# The settings of released BART summarisation models.
SUMMARY = {
  'num_beams': 4,
  'length_penalty': 2.0,
  'early_stopping': True,
  'no_repeat_ngram_size': 3,
  'min_length': 5,
  'forced_bos_token_id': 3,
  'forced_eos_token_id': END,
}
CASES = [
  *(('GPT-2', settings) for settings in PLAIN),
  ('T5', PLAIN[0]),
  ('BART', PLAIN[0]),
  # Plain beams of the others: the beam search is that of GPT-2, and their caches are those of the cases below.
  *(
    pytest.param(family, settings, marks=pytest.mark.nightly)
    for family in ('T5', 'BART')
    for settings in PLAIN[1:]
  ),
  ('GPT-2', LESS_REPETITION),
  ('GPT-2', BEAMS_WITH_ALL),
  ('T5', BEAMS_WITH_ALL),
  ('BART', SUMMARY),
]


@pytest.fixture(scope='module')
def made():
  """A cache of models by family."""
  return {}


@pytest.fixture
def both(made, perturbed, imported):
  """`both(family)`: the transformers model, the t2x model with its weights, and the end token."""

  def make(family):
    if family not in made:
      torch.manual_seed(0)
      theirs = perturbed(MAKE[family]())
      made[family] = theirs, imported(theirs), end_of(theirs, family)
    return made[family]

  return make


def end_of(theirs, family):
  """Returns the token whose first occurrences have the most different indices in greedy rows: random
  models rarely generate a fixed end token."""
  said = they_generate(theirs, family, 1, {'eos_token_id': None})[0].tolist()
  return max(
    range(4, VOCAB), key=lambda token: len({row.index(token) for row in said if token in row})
  )


def they_generate(model, family, num_return, settings):
  """Returns the new tokens, and the complete output of transformers."""
  ids, known = torch.tensor(IDS), torch.tensor(VALID).long()
  if family == 'GPT-2':
    # transformers requires padding on the left.
    ids, known = (
      torch.stack([row.roll(WIDTH - n) for row, n in zip(rows, LENGTHS.tolist(), strict=True)])
      for rows in (ids, known)
    )
  answer = model.generate(
    ids,
    attention_mask=known,
    **{
      'max_new_tokens': ROOM,
      'num_return_sequences': num_return,
      'pad_token_id': 0,
      'forced_eos_token_id': None,
      'return_dict_in_generate': True,
      'output_logits': True,
      'output_scores': True,
    }
    | settings,
  )
  return answer.sequences[:, WIDTH if family == 'GPT-2' else 1 :], answer


def we_generate(model, family, num_return, settings):
  """Generates with the strategy equal to the settings."""
  strategy, left_out = strategy_of(settings)
  assert not left_out
  prompts, lengths, source = IDS, LENGTHS, {}
  if family != 'GPT-2':
    prompts = np.full((BATCH, 1), START)
    lengths = np.ones(BATCH, int)
    known = Tokens.row(VALID.shape[1], segments=jnp.asarray(VALID, jnp.int32))
    source = {'source': jnp.asarray(IDS), 'source_tokens': known}
  return generate(
    model,
    prompts,
    lengths,
    max_new_tokens=ROOM,
    strategy=strategy,
    eos_id=settings['eos_token_id'],
    pad_id=0,
    num_return=num_return,
    **source,
  )


@pytest.mark.parametrize(('family', 'settings'), CASES)
def test_generated_tokens_equal_those_of_transformers(family, settings, both, table):
  theirs, model, end = both(family)
  settings = {'eos_token_id': END} | settings
  settings = {name: end if value == END else value for name, value in settings.items()}
  num_return = settings.get('num_beams', 1)
  generated = we_generate(model, family, num_return, settings)
  expected, answer = they_generate(theirs, family, num_return, settings)

  lengths, longest = np.asarray(generated.lengths).ravel(), expected.shape[1]
  assert lengths.max() == longest
  # After an end, transformers' beam search writes more end tokens if the padding id is 0.
  written = np.arange(longest) < lengths[:, None]
  tokens = np.asarray(generated.tokens).reshape(-1, ROOM)[:, :longest]
  np.testing.assert_array_equal(tokens[written], expected.numpy()[written])
  if num_return > 1:
    scores = np.asarray(generated.scores).ravel()
    np.testing.assert_allclose(scores, answer.sequences_scores.numpy(), atol=1e-4)
  else:
    log_probs = torch.stack(answer.logits, dim=1).log_softmax(-1)
    chosen = log_probs.gather(-1, expected[..., None])[..., 0].numpy()
    ours = np.asarray(generated.log_probs)[:, 0, :longest]
    np.testing.assert_allclose(ours[written], chosen[written], atol=1e-4)
    assert len(set(lengths.tolist())) > 1
  table[family]['decoding'] = 'same tokens and scores'
