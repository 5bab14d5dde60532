"""Transcriptions: rows of recordings and texts after a prompt, and what is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_tasks import write_recording

from t2x.base.errors import UserError
from t2x.data import BPE
from t2x.data.sources.base import NoSource
from t2x.decode import Greedy
from t2x.domains.speech import LogMel, SpeechModality, Transcription, WordErrors, speech_tokens
from t2x.domains.speech.transcription import PrepareTranscription
from t2x.experiments import read_config
from t2x.tasks.evaluators import Evaluated

NAMED = speech_tokens(languages=('en', 'fr'), seconds=1.0, step=0.1)
TOKENIZER = BPE(5 + len(NAMED) + 256, named=NAMED).train(['a b', 'c'])
PROMPT = '<|{language}|>', '<|transcribe|>', '<|notimestamps|>'
FEATURES = LogMel(rate=8000, window=200, hop=160, num_frames=20, num_features=8)
SOUND = np.sin(np.arange(1600) / 3).astype(np.float32) * 0.3
ROW = {'source': SOUND, 'target': 'a b', 'language': 'fr', 'times': [(0.0, 0.12), (0.31, 0.5)]}


def task(**settings):
  fields = {
    'source': NoSource(),
    'modality': SpeechModality(features=FEATURES),
    'target_length': 10,
    'prompt': PROMPT,
    'strategy': Greedy(),
  }
  return Transcription(**fields | settings).bound(TOKENIZER)


def prepared(row=ROW, **settings):
  return task(**settings).transform(train=True)(row, np.random.default_rng(0))


def names(ids):
  return TOKENIZER.pieces(ids)


def test_the_prompt_stands_before_the_text_and_has_no_weight():
  columns = prepared()
  assert names(columns['target'][:6]) == ['<|fr|>', *PROMPT[1:], 'a', ' ', 'b']
  assert columns['target'][6] == TOKENIZER.eos_id
  batch = {name: jnp.asarray(a)[None] for name, a in columns.items()}
  np.testing.assert_array_equal(task().target_weights(batch)[0], [0, 0, 0, 1, 1, 1, 1, 0, 0, 0])


def test_the_text_of_special_tokens_is_no_special_token():
  ids = TOKENIZER.encode('<|fr|>')
  assert len(ids) == 6 and TOKENIZER.decode(ids) == '<|fr|>'
  assert TOKENIZER.decode([TOKENIZER.named_id('<|fr|>'), *ids[:2]]) == '<|'


def test_words_stand_between_the_tokens_of_their_times():
  ids = prepared(timestamps=0.1, prompt=PROMPT[:2], target_length=12)['target']
  text = ['<|0.00|>', ' ', 'a', '<|0.10|>', '<|0.30|>', ' ', 'b', '<|0.50|>']
  assert names(ids[2:10]) == text
  with pytest.raises(UserError, match='needs a start and an end of each of 2 words'):
    prepared(ROW | {'times': [(0, 1)]}, timestamps=0.1)
  with pytest.raises(UserError, match=r"no special token '<\|1.20\|>': set BPE.named"):
    prepared(ROW | {'times': [(0, 1.2), (1.3, 2)]}, timestamps=0.1)


def test_recordings_of_integers_and_of_other_rates_are_converted():
  floats, integers = SOUND, np.round(SOUND * 32768).astype(np.int16)
  got = [prepared(ROW | {'source': a})['source'] for a in (floats, integers)]
  np.testing.assert_allclose(*got, atol=0.02)
  # A tone of 16 kHz with twice the samples is the same tone.
  fast = np.sin(np.arange(3200) / 6).astype(np.float32) * 0.3
  modality = SpeechModality(features=FEATURES, rate=16_000)
  other = prepared(ROW | {'source': fast}, modality=modality)['source']
  inner = slice(2, 8)
  loud = got[0][inner] > got[0].max() - 0.5
  np.testing.assert_allclose(other[inner][loud], got[0][inner][loud], atol=0.01)


def test_files_are_read_at_the_rate_of_the_features(tmp_path):
  write_recording(tmp_path / 'fast.wav', 9830 * np.sin(np.arange(3200) / 6), rate=16_000)
  read = task().modality.read(tmp_path / 'fast.wav')
  assert read.shape == (1600,)
  np.testing.assert_allclose(read[100:-100], SOUND[100:-100], atol=1e-3)


def test_an_example_may_have_the_path_of_its_recording(tmp_path):
  write_recording(tmp_path / 'a.wav', np.round(SOUND * 32768))
  got = prepared(ROW | {'source': str(tmp_path / 'a.wav')})['source']
  np.testing.assert_allclose(got, prepared()['source'], atol=0.02)
  with pytest.raises(UserError, match='cannot be read: No such file'):
    prepared(ROW | {'source': str(tmp_path / 'b.wav')})


def test_recordings_that_do_not_fit_say_what_to_change(tmp_path):
  write_recording(tmp_path / 'long.wav', np.zeros(4000))
  (tmp_path / 'not.wav').write_bytes(b'RIFF')
  bound = task(defaults={'language': 'en'})
  for path, message in (
    ('long.wav', r'has 0.5 seconds, but the model reads 0.4: divide it'),
    ('not.wav', 'write it as WAV with 16 bits'),
    ('none.wav', 'cannot be read: No such file'),
  ):
    with pytest.raises(UserError, match=message):
      bound.check_prompt(str(tmp_path / path))
  write_recording(tmp_path / 'short.wav', np.zeros(400))
  bound.check_prompt(str(tmp_path / 'short.wav'))
  with pytest.raises(UserError, match=r"no field 'language': set it with .*\.defaults"):
    task().check_prompt(str(tmp_path / 'short.wav'))
  with pytest.raises(UserError, match=r'7 tokens, but Transcription.target_length = 6: raise it'):
    prepared(target_length=6)


@pytest.fixture(scope='module')
def model():
  overrides = ['d_model=16', 'num_layers=1', 'MLP.hidden_dim=16', 'AudioStem.num_features=8']
  overrides += ['vocab_size=300', 'LearnedPositions.max_length=10']
  config = read_config(['configs/models/small_whisper.gin'], overrides)
  return config.build().complete_model()(rngs=nnx.Rngs(0))


def test_a_recording_is_transcribed_after_the_prompt_of_its_language(model):
  bound = task(defaults={'language': 'en'})
  settings = {'strategy': Greedy(), 'max_new_tokens': 128}
  found = [bound.generate(model, [one], **settings)[0][0] for one in (ROW, SOUND)]
  assert all(len(one['tokens']) <= 7 for one in found)
  for answer, language in zip(found, ('fr', 'en'), strict=True):
    first = [f'<|{language}|>', *PROMPT[1:]]
    ids = [TOKENIZER.start_id, *map(TOKENIZER.named_id, first), *answer['tokens'][:-1]]
    source = FEATURES(SOUND)[None]
    logits = jax.jit(type(model).__call__)(model, jnp.asarray(source), jnp.asarray([ids])).x
    np.testing.assert_array_equal(logits[0, 3:].argmax(-1), answer['tokens'])
  bound.check_generate(model, Greedy(), 2)


class Lines:
  """Evaluates examples whose outputs are known."""

  def __init__(self, pairs, outputs, monkeypatch):
    answers = iter(outputs)
    monkeypatch.setattr(
      Transcription,
      'generate',
      lambda *args, **more: [[{'text': next(answers), 'score': 0.0}] for _ in args[2]],
    )
    source = type('Known', (NoSource,), {'load': lambda self, split: pairs})()
    self.evaluated = Evaluated(
      task=task(source=source),
      watched=iter,
      model=lambda: None,
      rows=None,
      evaluation=None,
      batch_size=2,
    )


def test_errors_are_counted_per_word_of_all_references(monkeypatch):
  pairs = [
    {'source': [0], 'target': 'a b c d', 'language': 'fr'},
    {'source': [0], 'target': 'x', 'language': 'en'},
    {'source': [0], 'target': 'One, two', 'language': 'fr'},
  ]
  # A substitution and a deletion; two insertions; a substitution.
  lines = Lines(pairs, ['a c c', 'y x z', 'one two'], monkeypatch)
  evaluator = WordErrors(by='language', batch_size=1)
  metrics = evaluator(lines.evaluated).metrics
  assert metrics['word_error_rate'] == pytest.approx(5 / 7)
  assert metrics['word_error_rate/en'] == 2 and metrics['word_error_rate/fr'] == pytest.approx(
    3 / 6
  )
  assert metrics['exact_match'] == 0
  texts = ['a c c', 'y x z', 'one two']
  errors = sum(distance(p['target'], t) for p, t in zip(pairs, texts, strict=True))
  characters = sum(len(p['target']) for p in pairs)
  assert metrics['character_error_rate'] == pytest.approx(errors / characters)


def distance(a, b):
  """Levenshtein's distance."""
  row = list(range(len(b) + 1))
  for i, x in enumerate(a):
    last, row[0] = row[0], i + 1
    for j, y in enumerate(b):
      last, row[j + 1] = row[j + 1], min(row[j + 1] + 1, row[j] + 1, last + (x != y))
  return row[-1]


def test_words_are_compared_without_case_and_punctuation_if_asked(monkeypatch):
  from t2x.domains.speech import plain_words

  assert plain_words("Don't  STOP -- l'Été, 3.5!") == "don't stop l'été 3 5"
  pairs = [{'source': [0], 'target': 'One, two'}]
  lines = Lines(pairs, ['one two'], monkeypatch)
  words = WordErrors(normalise=plain_words, batch_size=1)
  assert words(lines.evaluated).metrics['word_error_rate'] == 0
  lines = Lines(pairs, ['one two'], monkeypatch)
  with pytest.raises(UserError, match="by = 'voice': the examples have no such field"):
    WordErrors(by='voice', batch_size=1)(lines.evaluated)


@pytest.mark.parametrize(
  'name', ['<|{|>', '<|}|>', '<|{0}|>', '<|{language.x}|>', '<|{language!x}|>', '<|{}|>']
)
def test_braces_of_a_prompt_that_name_no_field_are_named(name):
  prepare = object.__new__(PrepareTranscription)
  object.__setattr__(prepare, 'prompt', (name,))
  object.__setattr__(prepare, 'defaults', (('language', 'en'),))
  with pytest.raises(UserError, match=re.escape(f"Transcription.prompt has '{name}', ")) as error:
    list(prepare.names({}))
  assert '\n' not in str(error.value)
