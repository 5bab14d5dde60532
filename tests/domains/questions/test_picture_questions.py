"""Questions about pictures: batches, metrics, and what is refused."""

import collections
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from evaluating import evaluated
from fake_models import spec
from flax import nnx

from t2x.base.errors import UserError
from t2x.data import Bytes, Source
from t2x.domains.questions import (
  AnswerClassifier,
  EmbeddedInput,
  OneStream,
  PictureAnswers,
  PictureQuestions,
)
from t2x.layers import MLP, LearnedPositions, MultiHeadAttention, PatchEmbedding, TokenEmbedding
from t2x.models import Block, Encoder, Output, Stack
from t2x.samples import SceneQuestions
from t2x.samples.drawn_scenes import COLOURS, SHAPES
from t2x.tasks import ImageModality

SEED = 0
ANSWERS = ('dark', 'light', 'none')
BLOCK = functools.partial(
  Block,
  mixer=functools.partial(MultiHeadAttention, num_heads=2),
  feed_forward=functools.partial(MLP, hidden_dim=8),
)


class Shades(Source):
  """Pictures of one shade; a question, of two, asks for it or has the answer 'none'."""

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    rng = np.random.default_rng((SEED, len(split)))
    rows = []
    for _ in range(21):
      shade, asks = rng.integers(2, size=2)
      image = np.full((2, 2, 1), 255 * shade, np.uint8)
      answer = ANSWERS[shade] if asks else 'none'
      rows.append({'image': image, 'question': 'ab'[asks], 'answer': answer})
    return rows

  def fingerprint(self):
    return 'shades'


TASK = PictureQuestions(
  source=Shades(),
  tokenizer=Bytes(),
  modality=ImageModality(shape=(2, 2, 1)),
  answers=ANSWERS,
  length=4,
).bound(Bytes().train([]))


class Reader(nnx.Module):
  """Answers all questions with the shade."""

  def __init__(self):
    inputs = {'tokens': 'ids', 'image': 'image'}
    self.spec = nnx.static(spec(inputs, 'class logits', vocab_size=512, num_classes=2))

  def __call__(self, ids, images, tokens=None, key=None):
    shade = images.mean(axis=(1, 2, 3))
    return Output(jnp.stack([-shade, shade, jnp.full_like(shade, -9)], axis=1))


def test_the_evaluator_has_the_accuracy_with_other_pictures_and_that_of_frequent_answers():
  rows, train = TASK.rows('validation'), TASK.source.load('train')
  metrics = PictureAnswers()(evaluated(TASK, Reader(), rows, 4)).metrics
  shades = [ANSWERS[int(row['image'].max() > 0)] for row in rows]
  answers = [row['answer'] for row in rows]
  frequent = collections.Counter(row['answer'] for row in train)
  shown = collections.Counter(row['answer'] for row in train if row['question'] == 'b')
  text = [shown.most_common(1)[0][0] if row['question'] == 'b' else 'none' for row in rows]

  def share(guesses):
    return np.mean([a == b for a, b in zip(guesses, answers, strict=True)])

  assert metrics == {
    'examples': 21.0,
    'accuracy': share(shades),
    'accuracy_other_picture': share(shades[-1:] + shades[:-1]),
    'accuracy_most_frequent': share([frequent.most_common(1)[0][0]] * 21),
    'accuracy_by_question': share(text),
  }
  assert len(set(metrics.values())) == 5, metrics


def test_rows_are_the_question_with_padding_the_picture_and_the_label():
  row = TASK.rows('train')[0] | {'answer': 'light'}
  prepared = TASK.transform(train=True)(row, np.random.default_rng(0))
  assert {n: (a.shape, a.dtype) for n, a in prepared.items()} == {
    n: (s.shape[1:], s.dtype) for n, s in TASK.spec(1).items()
  }
  assert prepared['tokens'].tolist() == [3, ord(row['question']) + 5, 1, 0]
  assert prepared['segments'].tolist() == [1, 1, 1, 0]
  assert prepared['label'] == 1


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'question': 'a long question'}, 'has 17 tokens, but PictureQuestions.length = 4'),
    ({'answer': 'grey'}, "the answer 'grey' of '[ab]' is none of PictureQuestions.answers"),
  ],
)
def test_questions_and_answers_that_do_not_fit_are_refused(changes, message):
  with pytest.raises(UserError, match=message):
    TASK.transform(train=False)(TASK.rows('train')[0] | changes, np.random.default_rng(0))


def test_models_with_other_classes_are_refused():
  with pytest.raises(
    UserError, match='the model has 2 classes, but PictureQuestions has 3 answers'
  ):
    TASK.check_model(Reader())


def test_padding_of_a_question_does_not_change_the_logits():
  part = functools.partial
  text = part(EmbeddedInput, embedding=part(TokenEmbedding, vocab_size=512))
  image = part(EmbeddedInput, embedding=part(PatchEmbedding, patch_size=1, channels=1))
  model = OneStream(
    d_model=8,
    inputs={'tokens': part(text, positions=part(LearnedPositions, max_length=4)), 'image': image},
    body=part(Encoder, stack=part(Stack, num_layers=1, blocks=[BLOCK])),
    head=part(AnswerClassifier, num_classes=3),
    rngs=nnx.Rngs(0),
  )
  rows = [TASK.transform(train=False)(row, np.random.default_rng(0)) for row in TASK.rows('train')]
  batch = {name: jnp.stack([row[name] for row in rows[:3]]) for name in rows[0]}
  other = batch | {'tokens': jnp.where(batch['segments'] == 0, 99, batch['tokens'])}
  logits = [TASK.predictions(model, one, None)[0] for one in (batch, other)]
  np.testing.assert_array_equal(*logits)


def test_questions_about_scenes_need_the_picture():
  examples = SceneQuestions(examples={'train': 3000}).load('train')
  answers = collections.defaultdict(collections.Counter)
  for example in examples:
    answers[example['question']][example['answer']] += 1
  # Only the kind of the answer is in the question.
  assert sum(count.most_common(1)[0][1] for count in answers.values()) / 3000 < 0.5
  assert {answer for count in answers.values() for answer in count} == set(COLOURS) | set(
    SHAPES
  ) | {
    'yes',
    'no',
  }
