"""Tasks, batches and models whose micro-batches and loss terms have different weights, and the gradient
that the train step hands to the optimizer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from applying import moved
from fake_models import WithLogits, spec
from flax import nnx

from t2x.data import Bytes, Palette, TextFiles
from t2x.data.sources.base import NoSource
from t2x.domains.detection import Detection
from t2x.domains.pixels import NextPixels, PixelClassification, PixelLM, TextToImage
from t2x.domains.questions import PictureQuestions
from t2x.domains.retrieval import VersionContrast
from t2x.domains.segmentation import SemanticSegmentation
from t2x.domains.series import AutoregressiveForecast, Forecast, PointForecast, SeriesFile
from t2x.domains.speech import AudioClassification, LogMel, SpeechModality, Transcription
from t2x.domains.video import VideoClassification
from t2x.layers import MLP, Aux, MultiHeadAttention, TokenEmbedding, normal, param
from t2x.models import Block, Decoder, LanguageModel, Output, Stack, TiedHead
from t2x.samples import BabelDates, DigitRows, Digits
from t2x.tasks import (
  AuxiliaryOutput,
  Captions,
  CausalLM,
  Denoising,
  ImageClassification,
  ImageModality,
  LanguageModelling,
  MaskedLM,
  MaskedPairs,
  MaskedTranslations,
  Mixture,
  MultipleChoice,
  NextSentence,
  PermutationLM,
  PrefixLM,
  SequenceClassification,
  SpanCorruption,
  SpanPrediction,
  TextRegression,
  Translation,
  WordClassification,
)
from t2x.train import Trainer
from t2x.train.groups import Groups
from t2x.train.params import TEACHER, Blueprint
from t2x.train.step import TrainState, make_train_step

VOCAB = 512
CLASSES = 3
TEXT = {'source': TextFiles(train='none'), 'tokenizer': Bytes()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenModelling(LanguageModelling):
  """The mean loss over the next tokens of all texts: its weight is not the number of texts."""

  def _targets(self, batch, weights):
    return (batch['segments'][:, 1:] != 0) * weights[:, None]

  def term_weight(self, batch, weights):
    return self._targets(batch, weights).sum()

  def __call__(self, model, out, batch, weights, key):
    log_p = jax.nn.log_softmax(model.logits(out.x[:, :-1]))
    losses = -jnp.take_along_axis(log_p, batch['tokens'][:, 1:, None], axis=-1)[..., 0]
    total = (losses * self._targets(batch, weights)).sum()
    metrics = {'loss': (total, self.term_weight(batch, weights))}
    return AuxiliaryOutput(self.weight * total, metrics)


CLASSIFICATION = SequenceClassification(**TEXT, labels=['a', 'b', 'c'], length=8)
PIXELS = {
  'source': NoSource(),
  'tokenizer': Palette(num_colours=400),
  'image_shape': (3, 3, 1),
}
SERIES = SeriesFile(path='none', time='time', columns=['a', 'b'], minutes=60, rows=(1, 1, 1))
TASKS = {
  'causal_lm': CausalLM(**TEXT, length=8),
  'masked_lm': MaskedLM(**TEXT, length=16, rate=0.3),
  'permutation_lm': PermutationLM(**TEXT, length=16, rate=0.3),
  'span_corruption': SpanCorruption(**TEXT, source_length=40),
  'denoising': Denoising(**TEXT, length=24),
  'translation': Translation(
    source=BabelDates(), tokenizer=Bytes(), source_length=8, target_length=6
  ),
  'prefix_lm': PrefixLM(
    source=BabelDates(), tokenizer=Bytes(), source_length=4, target_length=4, length=10
  ),
  'image_classification': ImageClassification(
    source=Digits(), image_shape=(4, 4, 1), num_classes=CLASSES, label_smoothing=0.1
  ),
  'video_classification': VideoClassification(
    source=NoSource(), video_shape=(4, 2, 2, 1), num_classes=CLASSES
  ),
  'semantic_segmentation': SemanticSegmentation(
    source=NoSource(), image_shape=(4, 4, 1), num_classes=CLASSES
  ),
  'picture_questions': PictureQuestions(
    source=NoSource(),
    tokenizer=Bytes(),
    modality=ImageModality(shape=(4, 4, 1)),
    answers=['a', 'b', 'c'],
    length=4,
  ),
  'audio_classification': AudioClassification(
    source=NoSource(),
    num_classes=CLASSES,
    features=LogMel(rate=8000, window=200, hop=80, num_frames=4, num_features=4),
  ),
  'detection': Detection(
    image_shape=(4, 4, 1), num_classes=CLASSES - 1, num_queries=6, no_object=0.3
  ),
  'captions': Captions(
    source=DigitRows(),
    tokenizer=Bytes(),
    modality=ImageModality(shape=(2, 2, 1)),
    target_length=6,
  ),
  'transcription': Transcription(
    source=NoSource(),
    tokenizer=Bytes(),
    modality=SpeechModality(
      features=LogMel(rate=8000, window=200, hop=80, num_frames=2, num_features=2)
    ),
    prompt=('<|en|>',),
    target_length=6,
  ),
  'forecast': Forecast(source=SERIES, context=4, horizon=2),
  'autoregressive_forecast': AutoregressiveForecast(
    source=SERIES, context=4, horizon=2, calendar=['hour']
  ),
  'pixels': PixelLM(**PIXELS),
  'pixel_classes': PixelClassification(
    **PIXELS, num_classes=CLASSES, auxiliaries={'pixels': NextPixels()}
  ),
  'text_to_image': TextToImage(
    **PIXELS | {'tokenizer': Palette(num_colours=4, text=Bytes())}, text_length=5
  ),
  'sequence_classification': CLASSIFICATION,
  'with_language_modelling': dataclasses.replace(
    CLASSIFICATION, auxiliaries={'lm': LanguageModelling()}
  ),
  'with_token_modelling': dataclasses.replace(CLASSIFICATION, auxiliaries={'lm': TokenModelling()}),
  'masked_pairs': MaskedPairs(**TEXT, length=16, rate=0.3, auxiliaries={'next': NextSentence()}),
  'masked_translations': MaskedTranslations(**TEXT, length=16, rate=0.3, languages={'text': 0}),
  'version_contrast': VersionContrast(**TEXT, length=8),
  'text_regression': TextRegression(**TEXT, length=8, score='rating'),
  'both_orders': TextRegression(
    **TEXT, length=8, score='rating', fields=['a', 'b'], further_orders=[['b', 'a']]
  ),
  'multiple_choice': MultipleChoice(**TEXT, length=8, context=['text'], num_choices=CLASSES),
  'span_prediction': SpanPrediction(**TEXT, length=8, stride=2),
  'mixture': Mixture(
    tasks={
      'few': MaskedLM(**TEXT, length=16, rate=0.3),
      'all': MaskedLM(**TEXT, length=16, rate=0.3, mask_rate=0.5),
    }
  ),
  'word_classification': WordClassification(**TEXT, labels=['O', 'B-X', 'I-X'], length=8),
}


def batch_of(task, num_rows=8, seed=0):
  """A random batch whose rows have different numbers of targets; some have none."""
  rng = np.random.default_rng(seed)
  shares = rng.permutation(np.arange(1, num_rows + 1) / num_rows)

  def array(name, spec):
    shape, column = spec.shape, shares[:, None]
    if name in ('image', 'video', 'audio') or (name == 'source' and spec.dtype == jnp.float32):
      return rng.normal(size=shape)
    if name == 'future':
      return np.where(rng.random(shape) < 0.3, np.nan, rng.normal(size=shape))
    if name == 'scale':
      return rng.uniform(0.5, 2, shape)
    if name == 'weight':
      return rng.permutation(np.arange(num_rows) % 3 > 0)
    if name in ('weights', 'word_weights'):
      return rng.random(shape) < column
    if name.endswith('segments') or name == 'context':
      return np.arange(shape[1]) < np.ceil(column * shape[1])
    if name == 'loss_weight':
      return rng.uniform(0.5, 2.0, shape)
    if name == 'task':
      return np.arange(num_rows) % 2
    if name == 'in_source':
      return np.broadcast_to(np.arange(shape[1]) < 2, shape)
    if name == 'boxes':
      return rng.uniform(0.2, 0.6, shape)
    if name in ('start', 'end', 'types', 'next'):
      return np.zeros(shape)
    if name == 'target' and shape == (num_rows,):
      return rng.normal(size=shape)
    if name == 'mask':
      return np.where(rng.random(shape) < 0.2, task.ignored, rng.integers(0, CLASSES, shape))
    if name in ('label', 'word_labels'):
      return rng.integers(0, CLASSES, shape)
    if name in ('masked_positions', 'word_positions'):
      return rng.integers(0, task.spec(1)['segments'].shape[1], shape)
    if name.endswith('positions'):
      return np.broadcast_to(np.arange(shape[1]), shape)
    return rng.integers(5, 250, shape)

  spec = task.spec(num_rows)
  return {name: jnp.asarray(array(name, one), one.dtype) for name, one in spec.items()}


class Bag(WithLogits, nnx.Module):
  """Linear in the vectors of each token, and for a target in the mean vector of its source."""

  def __init__(self, num_logits, rngs, num_classes=CLASSES):
    self.table = param(normal(1.0), (VOCAB, 4), ('vocab', 'embed'), rngs, kind='table')
    self.out = param(normal(1.0), (4, num_logits), ('embed', 'vocab'), rngs, kind='table')
    self.classes = param(normal(1.0), (4, num_classes), ('embed', 'classes'), rngs, kind='table')
    self.spec = nnx.static(spec())

  @property
  def head(self):
    return self

  def classify(self, x, segments, key, texts=1):
    return x.mean(axis=1).reshape(-1, texts, 4).sum(axis=1) @ self.classes[...]

  def hidden(self, *ids, **settings):
    vectors = self.table[...][ids[-1]]
    if len(ids) == 2 and jnp.issubdtype(ids[0].dtype, jnp.floating):
      vectors += ids[0].reshape(len(ids[0]), 1, -1)
    elif len(ids) == 2:
      vectors += self.table[...][ids[0]].mean(axis=1, keepdims=True)
    return Output(vectors)

  def logits(self, x):
    return x @ self.out[...]


class Pixels(nnx.Module):
  """Class logits that are linear in the pixels or features."""

  def __init__(self, rngs):
    self.classes = param(normal(1.0), (16, CLASSES), ('embed', 'classes'), rngs, kind='table')

  def __call__(self, images, key=None):
    return Output(images.reshape(len(images), -1) @ self.classes[...])


class Lines(nnx.Module):
  """Forecasts of two values that are linear in the context."""

  distribution = PointForecast()

  def __init__(self, rngs):
    self.table = param(normal(1.0), (4, 2), (None, 'embed'), rngs, kind='table')

  def __call__(self, series, *rest, key=None):
    x = jnp.einsum('bcd,ch->bhd', series, self.table[...])[..., None]
    ones = jnp.ones((len(x), 1, x.shape[2]))
    return Output(x, heads={'loc': 0 * ones, 'scale': ones})


class WithQuestion(Pixels):
  """Class logits that ignore the question."""

  def __call__(self, ids, images, tokens=None, key=None):
    return super().__call__(images)


class Shades(nnx.Module):
  """Class logits of pixels that are linear in the pixel."""

  def __init__(self, rngs):
    self.classes = param(normal(1.0), (1, CLASSES), ('embed', 'classes'), rngs, kind='table')

  def __call__(self, images, key=None):
    return Output(images @ self.classes[...])


class Queries(nnx.Module):
  """Classes and boxes of six queries in two layers, which are linear in the pixels."""

  def __init__(self, rngs):
    shape = (2, 6, 16, CLASSES + 4)
    axes = (None, None, 'embed', 'classes')
    self.table = param(normal(1.0), shape, axes, rngs, kind='table')

  def __call__(self, images, key=None):
    y = jnp.einsum('bp,lqpc->blqc', images.reshape(len(images), -1), self.table[...])
    heads = {'classes': y[..., :CLASSES], 'boxes': jax.nn.sigmoid(y[..., CLASSES:])}
    return Output(heads['classes'][:, -1], heads=heads)


def model_of(task):
  """A model with which a step compiles quickly."""
  if isinstance(task, ImageClassification | VideoClassification | AudioClassification):
    return Pixels(nnx.Rngs(0))
  if isinstance(task, Forecast):
    return Lines(nnx.Rngs(0))
  if isinstance(task, SemanticSegmentation):
    return Shades(nnx.Rngs(0))
  if isinstance(task, PictureQuestions):
    return WithQuestion(nnx.Rngs(0))
  if isinstance(task, Detection):
    return Queries(nnx.Rngs(0))
  if isinstance(task, MultipleChoice | VersionContrast):
    return Bag(VOCAB, nnx.Rngs(0), num_classes=1)
  return Bag(2 if isinstance(task, SpanPrediction) else VOCAB, nnx.Rngs(0))


class Balanced(MLP):
  """An MLP with an auxiliary loss of each row: the mean square of its input."""

  def __call__(self, x, call, cache=None):
    aux = Aux({'balance': 0.1 * jnp.square(x).mean(axis=(1, 2))})
    return dataclasses.replace(super().__call__(x, call, cache), aux=aux)


def transformer(chunk=None, head=TiedHead, vocab_size=VOCAB, vocab_multiple=1):
  """A scanned decoder whose feed-forward layers give an auxiliary loss.

  Args:
    chunk: that of its head.
    head: `TiedHead` or `LMHead`.
    vocab_size: number of tokens.
    vocab_multiple: that of its embedding.
  """
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2),
    feed_forward=functools.partial(Balanced, hidden_dim=16),
  )
  model = LanguageModel(
    d_model=8,
    embedding=functools.partial(
      TokenEmbedding, vocab_size=vocab_size, vocab_multiple=vocab_multiple
    ),
    body=functools.partial(Decoder, stack=functools.partial(Stack, num_layers=3, blocks=[block])),
    head=functools.partial(head, chunk=chunk),
    rngs=nnx.Rngs(0),
  )
  # Vectors of about length 1: norms of small ones enlarge rounding errors.
  return moved(model, scale=0.3, seed=0)


def gradient(task, model, batch, accumulate=1, layout=None, teacher=None):
  """The gradient that the optimizer is given, and the metrics of the step."""
  optimizer = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, state, params: (jax.tree.map(jnp.zeros_like, grads), grads),
  )
  num_rows = jax.tree.leaves(batch)[0].shape[0]
  trainer = Trainer(num_steps=1, batch_size=num_rows, accumulate=accumulate)
  blueprint = Blueprint(jax.eval_shape(lambda: model))
  groups, params = Groups((), blueprint.infos), blueprint.params(model)
  state = TrainState(jnp.int32(0), params, optimizer.init(params), jax.random.key(0))
  frozen = {}
  if teacher is not None:
    shapes = Blueprint(jax.eval_shape(lambda: teacher), TEACHER)
    teacher, frozen = shapes, shapes.params(teacher)
  step = jax.jit(make_train_step(task, trainer, optimizer, blueprint, groups, layout, teacher))
  state, out = step(state, frozen, batch)
  return blueprint.model(state.opt_state), out.sums


def assert_close(tree, expected, tolerance=1e-6):
  """Compares each array relative to its largest entry, or to 0.01 where all entries are smaller: the
  gradient of a key bias is 0 but for rounding."""
  for one, other in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(np.abs(b).max(), 1e-2))
