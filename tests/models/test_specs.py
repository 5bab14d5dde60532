"""Facts about models, as data."""

import functools

import jax
from flax import nnx

from t2x.layers import (
  Causal,
  Full,
  Input,
  LearnedGrid,
  LearnedPositions,
  MultiHeadAttention,
  PatchEmbedding,
  TokenEmbedding,
  Window,
)
from t2x.models import (
  Classifier,
  Decoder,
  Encoder,
  EncoderDecoder,
  Model,
  ModelSpec,
  SequenceClassifier,
  TextModel,
  VisionTransformer,
)

TOKENS = frozenset({'token logits'})


def shapes(factory):
  return jax.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))


def learned(length):
  return functools.partial(LearnedPositions, max_length=length)


def test_a_language_model_is_causal_with_the_length_of_its_positions(make):
  layers = make.stack([make.block(), make.block(pattern=Window(3))])
  model = shapes(make.language_model(layers=layers, encoding=learned(16)))
  assert model.spec == ModelSpec(
    inputs={'tokens': Input(max_length=16, vocab_size=make.vocab)},
    outputs=TOKENS,
    patterns=(Causal() & Full(), Causal() & Window(3)),
  )
  assert model.spec.is_causal(8) and isinstance(model, TextModel)


def test_a_classifier_of_texts_has_classes_types_and_still_token_logits(make):
  head = functools.partial(
    SequenceClassifier, classifier=functools.partial(Classifier, num_classes=3)
  )
  embedding = functools.partial(TokenEmbedding, vocab_size=make.vocab, num_types=2)
  model = shapes(functools.partial(make.language_model(Encoder), head=head, embedding=embedding))
  assert model.spec.outputs == {'token logits', 'class logits'}
  assert (model.spec.num_classes, model.spec.num_types) == (3, 2)
  assert model.spec.max_length is None and not model.spec.is_causal(8)


def test_an_encoder_decoder_has_the_vocabulary_patterns_and_length_of_its_target(make):
  cross = functools.partial(MultiHeadAttention, num_heads=4)
  model = shapes(
    functools.partial(
      EncoderDecoder,
      d_model=make.width,
      embedding=functools.partial(TokenEmbedding, vocab_size=7),
      target_embedding=functools.partial(TokenEmbedding, vocab_size=9),
      encoder=functools.partial(Encoder, stack=make.stack(), encoding=learned(12)),
      decoder=functools.partial(
        Decoder, stack=make.stack([make.block(cross=cross)]), encoding=learned(5)
      ),
    )
  )
  assert model.spec == ModelSpec(
    inputs={
      'source': Input(max_length=12, vocab_size=7),
      'target': Input(max_length=5, vocab_size=9),
    },
    outputs=TOKENS,
    patterns=(Causal() & Full(),),
  )
  assert isinstance(model, TextModel)


def test_an_image_model_returns_class_logits_or_vectors(make):
  build = functools.partial(
    VisionTransformer,
    d_model=make.width,
    embedding=functools.partial(PatchEmbedding, patch_size=2),
    positions=functools.partial(LearnedGrid, height=2, width=2),
    body=functools.partial(Encoder, stack=make.stack()),
  )
  model = shapes(functools.partial(build, head=functools.partial(Classifier, num_classes=5)))
  assert isinstance(model, Model) and model.spec.kinds == {'image': 'image'}
  assert (model.spec.outputs, model.spec.num_classes) == ({'class logits'}, 5)
  bare = shapes(functools.partial(build, head=None))
  assert (bare.spec.outputs, bare.spec.num_classes) == ({'vectors'}, None)
