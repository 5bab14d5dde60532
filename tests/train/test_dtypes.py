"""A training step follows the dtype policy."""

import functools

import jax
import jax.numpy as jnp
import pytest
from equations import equations, products

from t2x.data import Bytes, TextFiles
from t2x.layers import (
  MLP,
  Blockwise,
  DynamicConvolution,
  FactorisedEmbedding,
  FactorizedRandomScores,
  FixupWiring,
  LearnedGrid,
  LearnedPositions,
  LightweightConvolution,
  MultiHeadAttention,
  PatchEmbedding,
  PlusAlpha,
  PreNorm,
  RandomScores,
  ReZero,
  RMSNorm,
  ShawPositions,
  Synthesizer,
  T5Bias,
  TokenEmbedding,
)
from t2x.layers.dtypes import Dtypes
from t2x.models import (
  Block,
  Classifier,
  Decoder,
  Encoder,
  LanguageModel,
  LMHead,
  MaskedLMHead,
  MixtureOfSoftmaxes,
  SequenceClassifier,
  Stack,
  TiedHead,
  VisionTransformer,
  mean_tokens,
)
from t2x.parallel import Mesh
from t2x.tasks import CausalLM, ImageClassification, SequenceClassification
from t2x.train import (
  SGD,
  Adafactor,
  AdamW,
  Constant,
  Experiment,
  Lion,
  Muon,
  Program,
  Trainer,
)

TEXT = TextFiles(train='none')
LENGTH = 12
attention = functools.partial(MultiHeadAttention, num_heads=2, dropout_rate=0.1)
synthesizer = functools.partial(Synthesizer, num_heads=2, mix=PlusAlpha)


def stack(mixer=attention, wiring=PreNorm):
  feed_forward = functools.partial(MLP, hidden_dim=32)
  block = functools.partial(Block, mixer=mixer, feed_forward=feed_forward, wiring=wiring)
  return functools.partial(Stack, num_layers=2, blocks=[block])


def language_model(
  embedding=functools.partial(TokenEmbedding, vocab_size=261, num_types=2),
  encoding=functools.partial(LearnedPositions, max_length=LENGTH),
  head=TiedHead,
  body=Decoder,
  **blocks,
):
  body = functools.partial(body, stack=stack(**blocks), encoding=encoding)
  return functools.partial(LanguageModel, d_model=16, embedding=embedding, body=body, head=head)


MODELS = {
  'learned_positions': language_model(),
  't5': language_model(
    encoding=functools.partial(T5Bias, num_heads=2, bidirectional=False),
    wiring=functools.partial(PreNorm, norm=RMSNorm),
    mixer=functools.partial(attention, kernel=Blockwise(4, 4)),
  ),
  'shaw': language_model(encoding=functools.partial(ShawPositions, head_dim=8), head=MaskedLMHead),
  'factorised': language_model(
    functools.partial(FactorisedEmbedding, vocab_size=261, factor_dim=4, use_bias=True),
    head=functools.partial(TiedHead, use_bias=True),
  ),
  'rezero': language_model(wiring=ReZero),
  'fixup': language_model(wiring=FixupWiring),
  'random': language_model(
    mixer=functools.partial(synthesizer, scores=functools.partial(RandomScores, max_length=LENGTH))
  ),
  'factorized_random': language_model(
    mixer=functools.partial(
      synthesizer, scores=functools.partial(FactorizedRandomScores, max_length=LENGTH)
    )
  ),
  'lightweight': language_model(
    mixer=functools.partial(LightweightConvolution, num_heads=2, kernel_size=3)
  ),
  'dynamic': language_model(
    mixer=functools.partial(DynamicConvolution, num_heads=2, kernel_size=3)
  ),
  'untied': language_model(head=functools.partial(LMHead, use_bias=True)),
  'mixture': language_model(head=functools.partial(MixtureOfSoftmaxes, num_softmaxes=2)),
  'classifier': language_model(
    body=Encoder,
    head=functools.partial(
      SequenceClassifier,
      pool=mean_tokens,
      classifier=functools.partial(Classifier, num_classes=3),
    ),
  ),
  'vision': functools.partial(
    VisionTransformer,
    d_model=16,
    embedding=functools.partial(PatchEmbedding, patch_size=2, channels=1),
    positions=functools.partial(LearnedGrid, height=4, width=4),
    body=functools.partial(Encoder, stack=stack()),
    head=functools.partial(Classifier, num_classes=3),
  ),
}


def task_of(name):
  if name == 'vision':
    return ImageClassification(source=TEXT, image_shape=(8, 8, 1), num_classes=3)
  if name == 'classifier':
    return SequenceClassification(
      source=TEXT, tokenizer=Bytes(), length=LENGTH, labels=['a', 'b', 'c']
    )
  return CausalLM(source=TEXT, tokenizer=Bytes(), length=LENGTH)


def program(name, **settings):
  trainer = Trainer(
    **{
      'num_steps': 4,
      'batch_size': 8,
      'compute_dtype': 'bfloat16',
      'ema_decay': 0.9,
      'schedule': Constant(peak=1e-2),
    }
    | settings
  )
  return Program(Experiment(model=MODELS[name], task=task_of(name), trainer=trainer, mesh=Mesh()))


@pytest.mark.parametrize('name', MODELS)
def test_a_bfloat16_step_sums_nothing_in_bfloat16(name):
  """Contractions accumulate in float32 by themselves."""
  made = program(name)
  step = jax.make_jaxpr(made.step())(made.abstract, made.frozen, made.batch(), {})
  sums = {'reduce_sum', 'scatter-add', 'cumsum', 'reduce_window_sum'}
  found = [
    equation
    for equation in equations(step.jaxpr)
    if equation.primitive.name in sums and equation.outvars[0].aval.dtype == jnp.bfloat16
  ]
  # The transpose of `x[None]` is a sum over one element.
  found = [
    equation
    for equation in found
    if equation.primitive.name != 'reduce_sum'
    or equation.outvars[0].aval.size < equation.invars[0].aval.size
  ]
  assert not found, found


@pytest.mark.parametrize('optimizer', [AdamW(), Adafactor(), Lion(), Muon(), SGD(momentum=0.9)])
def test_a_train_state_has_the_dtypes_of_the_policy(optimizer):
  state = program('rezero', optimizer=optimizer).abstract
  for part, dtype in (
    (state.params, Dtypes.parameters),
    (state.opt_state, Dtypes.optimizer),
    (state.ema, Dtypes.ema),
  ):
    floats = [
      leaf.dtype for leaf in jax.tree.leaves(part) if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    assert set(floats) == {jnp.dtype(dtype)}


@pytest.mark.parametrize('name', MODELS)
def test_parameters_kept_in_float32_promote_no_contraction(name):
  made = program(name)

  def loss(params, batch):
    model = made.blueprint.model(params, 'bfloat16')
    return task_of(name).sums(model, batch, jax.random.key(0)).terms

  forward = jax.make_jaxpr(loss)(made.abstract.params, made.batch())
  operands = {
    operand.aval.dtype for equation in products(forward.jaxpr) for operand in equation.invars
  }
  assert operands == {jnp.dtype('bfloat16')}


def test_the_policy_names_the_dtype_of_a_working_copy():
  trainer = Trainer(num_steps=1, batch_size=1, compute_dtype='bfloat16')
  assert trainer.dtypes == Dtypes('bfloat16')
  assert trainer.dtypes.working(keep_float32=False) == 'bfloat16'
  assert trainer.dtypes.working(keep_float32=True) == Dtypes().working(False) == 'float32'
