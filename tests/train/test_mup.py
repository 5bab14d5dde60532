"""muP: what each parameter is multiplied with, and that activations then change equally at all widths."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.experiments import read_experiment
from t2x.layers import (
  MLP,
  JointNorm,
  LayerNorm,
  MultiHeadAttention,
  RMSNorm,
  TokenEmbedding,
  normal,
  param,
  width_normal,
)
from t2x.layers.initializers import lecun_normal
from t2x.models import Block, Decoder, LanguageModel, LMHead, MaskedLMHead, Stack, TiedHead
from t2x.train import Experiment, MuP, Trainer
from t2x.train.coordinates import Sizes, coordinates, coordinates_table, power
from t2x.train.mup import check_same
from t2x.train.optimizers import SGD, Adafactor, AdamW, Lion, Muon, build_optimizer
from t2x.train.params import Blueprint
from t2x.train.program import Program
from t2x.train.schedules import Constant

BASE, VOCAB = 32, 50


def lm(
  width=BASE,
  *,
  head=TiedHead,
  init=normal(0.02),
  num_heads=None,
  num_layers=2,
  vocab_size=VOCAB,
  **embedding,
):
  """The constructor of a decoder with biases and fixed standard deviations, as GPT-2's."""
  attention = functools.partial(
    MultiHeadAttention, num_heads=num_heads or width // 16, kernel_init=init, out_init=init
  )
  mlp = functools.partial(MLP, hidden_dim=4 * width, kernel_init=init, out_init=init)
  block = functools.partial(Block, mixer=attention, feed_forward=mlp)
  return functools.partial(
    LanguageModel,
    d_model=width,
    embedding=functools.partial(TokenEmbedding, vocab_size=vocab_size, **embedding),
    body=functools.partial(
      Decoder,
      stack=functools.partial(Stack, num_layers=num_layers, blocks=[block]),
      final_norm=LayerNorm,
    ),
    head=head,
  )


def parameters(model, mup=None, seed=0):
  """Initial values by name, and the program."""
  trainer = Trainer(num_steps=1, batch_size=1, optimizer=AdamW())
  program = Program(Experiment(model=model, mup=mup, trainer=trainer))
  state, _ = program.init(seed)
  return jax.device_get(state.params), program


def deviations(params):
  return {n: float(np.std(p.reshape(-1))) for n, p in params.items()}


HIDDEN = {
  f'body.stack.blocks.0.{name}.kernel'
  for name in ('mixer.q', 'mixer.k', 'mixer.v', 'mixer.out', 'feed_forward.up', 'feed_forward.down')
}


@pytest.mark.parametrize('init', [normal(0.02), lecun_normal()])
def test_the_factors_match_the_papers_table(init):
  ratio = 8
  head = functools.partial(LMHead, init=init)
  base, _ = parameters(lm(head=head, init=init))
  wide, program = parameters(
    lm(ratio * BASE, head=head, init=init), MuP(base=lm(head=head, init=init))
  )
  expected = dict.fromkeys(wide, (1.0, 1.0))
  expected |= dict.fromkeys(HIDDEN, (ratio**-0.5, 1 / ratio))
  expected['head.out.kernel'] = (1 / ratio, 1 / ratio)
  assert {*HIDDEN, 'head.out.kernel'} < set(wide)
  assert program.experiment.scaling().width_ratio == ratio
  stds = deviations(base)
  for name, std in deviations(wide).items():
    factor, step = expected[name]
    np.testing.assert_allclose(std, factor * stds[name], rtol=0.04, err_msg=name)
    assert program.experiment.scaling().steps[name] == pytest.approx(step), name


def test_a_matrix_to_a_width_that_has_no_name_is_hidden():
  base = lm(head=MaskedLMHead)
  scaling = MuP(base=base).scaling(lm(4 * BASE, head=MaskedLMHead))
  assert scaling.kinds['head.transform.kernel'] == 'hidden'
  assert scaling.kinds['head.bias'] == scaling.kinds['embedding.table'] == 'other'


@pytest.mark.parametrize(
  ('norm', 'axis'), [({'qk_norm': RMSNorm}, 'head_dim'), ({'qk_norm': JointNorm}, 'features')]
)
def test_norms_of_queries_and_keys_are_vectors_of_any_width(norm, axis):
  """Their features are not d_model, which must be the same multiple everywhere."""

  def normed(width):
    attention = functools.partial(MultiHeadAttention, num_heads=width // 16, **norm)
    mlp = functools.partial(MLP, hidden_dim=4 * width, norm=LayerNorm)
    block = functools.partial(Block, mixer=attention, feed_forward=mlp)
    stack = functools.partial(Stack, num_layers=2, blocks=[block])
    embedding = functools.partial(TokenEmbedding, vocab_size=VOCAB)
    body = functools.partial(Decoder, stack=stack)
    return functools.partial(LanguageModel, d_model=width, embedding=embedding, body=body)

  scaling = MuP(base=normed(BASE)).scaling(normed(4 * BASE))
  assert scaling.width_ratio == 4
  for name in ('mixer.q_norm.scale', 'mixer.k_norm.scale', 'feed_forward.norm.bias'):
    assert scaling.kinds[f'body.stack.blocks.0.{name}'] == 'other'
  infos = Blueprint(jax.eval_shape(lambda: normed(BASE)(rngs=nnx.Rngs(0)))).infos
  assert infos['body.stack.blocks.0.mixer.q_norm.scale'].axes == (axis,)


def test_the_base_trains_as_without_mup():
  plain, _ = parameters(lm())
  own, program = parameters(lm(), MuP(base=lm()))
  jax.tree.map(np.testing.assert_array_equal, own, plain)
  assert set(program.experiment.scaling().steps.values()) == {1.0}


@pytest.mark.parametrize('scaled', [False, True])
def test_shared_tables_have_logits_divided_by_the_ratio(scaled, compared):
  init = functools.partial(width_normal)
  ids = jnp.arange(6)[None]

  def outputs(width, mup):
    settings = {'scaled': True, 'init': init(width)} if scaled else {}
    params, program = parameters(
      lm(width, **settings), mup and MuP(base=lm(**settings, width=BASE))
    )
    model = program.blueprint.model(params)
    model = jax.tree.map(jnp.asarray, model)
    x, _ = model.embedding(ids)
    return (
      np.asarray(x),
      np.asarray(model.embedding.attend(x)),
      np.asarray(params['embedding.table']),
    )

  _, logits, table = outputs(4 * BASE, None)
  own_x, own_logits, own_table = outputs(4 * BASE, True)
  if not scaled:
    np.testing.assert_array_equal(own_table, table)
    np.testing.assert_allclose(own_logits, logits / 4, rtol=1e-6)
  # With factor sqrt(d_model), too, embedded tokens have the size of those of the base.
  base_x, *_ = outputs(BASE, None)
  np.testing.assert_allclose(own_x.std(), base_x.std(), rtol=0.1)
  expected = np.float64(own_x) @ np.float64(own_table).T / 4
  compared('muP', 'NumPy, float64', own_logits, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('rule', [AdamW(weight_decay=0.5), Lion(weight_decay=0.5)])
def test_steps_are_scaled_but_weight_decay_is_not(rule):
  params, program = parameters(lm(2 * BASE), MuP(base=lm()))

  def update(scales):
    rule_ = build_optimizer(
      rule,
      Constant(peak=0.1),
      clip_norm=None,
      num_steps=1,
      infos=program.groups.trained,
      scales=scales,
    )
    gradient = jax.tree.map(np.ones_like, params)
    return rule_.update(gradient, rule_.init(params), params)[0]

  plain, scaled = update(None), update(program.experiment.scaling().steps)
  for name, value in params.items():
    decay = plain[name] + 0.1  # The direction is 1.
    np.testing.assert_allclose(
      scaled[name], decay - 0.1 * program.experiment.scaling().steps[name], atol=1e-6
    )
    assert name not in HIDDEN or abs(decay + 0.05 * value).max() < 1e-6


@pytest.mark.parametrize('rule', [SGD(), Muon(), Adafactor()])
def test_rules_without_a_table_are_refused(rule):
  trainer = Trainer(num_steps=1, batch_size=1, optimizer=rule)
  with pytest.raises(UserError, match=f'no rule for the steps of {type(rule).__name__}: use AdamW'):
    _ = Program(Experiment(model=lm(64), mup=MuP(base=lm()), trainer=trainer)).abstract


def untyped(key, shape, dtype):
  return 0.02 * jax.random.normal(key, shape, dtype)


@pytest.mark.parametrize(
  ('model', 'message'),
  [
    (lm(64, num_heads=2), "the axis 'head_dim' is no width: keep head_dim and set num_heads"),
    (lm(64, num_layers=3), 'has 3 copies, such as layers, in the model and 2 in the base'),
    (lm(64, vocab_size=60), "the axis 'vocab' is no width"),
    (lm(64, head=LMHead), 'only the model has the parameter head.out.kernel'),
    (lm(64, init=untyped), 'needs the standard deviation of the initialiser of'),
  ],
)
def test_a_base_that_differs_in_more_than_width_is_refused(model, message):
  with pytest.raises(UserError, match=message):
    MuP(base=lm()).scaling(model)


GIN = """
include '{model}'
d_model = 32
vocab_size = 261
num_layers = 2
MLP.hidden_dim = %d_ff
d_ff = 64
num_heads = 2
MultiHeadAttention.num_heads = %num_heads
Experiment.mup = @MuP()
MuP.base = @base/LanguageModel
base/LanguageModel.d_model = 32
base/MLP.hidden_dim = 64
base/MultiHeadAttention.num_heads = 2
Experiment.task = @CausalLM()
CausalLM.source = @TextFiles()
CausalLM.tokenizer = @Bytes()
CausalLM.length = 32
TextFiles.train = '{path}'
Experiment.trainer = @Trainer()
Trainer.num_steps = 2
Trainer.batch_size = 8
Trainer.optimizer = @AdamW()
Trainer.schedule = @Cosine()
Cosine.peak = 0.005
"""


def test_activations_change_equally_at_all_widths(tmp_path):
  root = Path(__file__).parents[2]
  path, model = root / 'LICENSE', root / 'configs/models/small_decoder.gin'
  config = tmp_path / 'config.gin'
  config.write_text(GIN.format(path=path, model=model))
  widths = [32, 128]

  def found(*bindings):
    return [
      coordinates(
        read_experiment(
          [config], [f'd_model={w}', f'd_ff={2 * w}', f'num_heads={w // 16}', *bindings]
        ),
        4,
      )
      for w in widths
    ]

  for bindings, low, high in ((), -0.1, 0.1), (('Experiment.mup=None',), 0.5, 1.2):
    sizes = found(*bindings)
    names = set(sizes[0].change)
    assert names == {'layer 0', 'layer 1', 'logits'}
    for name in names:
      assert low < power(widths, [size.change[name] for size in sizes]) < high, (bindings, name)


def test_the_table_has_the_power_of_the_width():
  sizes = [Sizes({'logits': 1.0}, {'logits': w}) for w in (2.0, 4.0)]
  table = coordinates_table([64, 128], sizes, 4).splitlines()
  assert table[1].split() == ['initial,', 'logits', '1', '1', '+0.00']
  assert table[2].split() == ['change', 'in', '4', 'steps,', 'logits', '2', '4', '+1.00']
  assert np.isnan(power([1, 2], [0.0, 1.0]))


def test_a_run_with_mup_is_no_source_for_a_model_without_it(tmp_path):
  (tmp_path / 'config.gin').write_text('Experiment:\n  mup = @MuP()\n')
  with pytest.raises(
    UserError, match=r'was trained with Experiment\.mup, this model is built without'
  ):
    check_same(tmp_path, None)
  check_same(tmp_path, MuP(base=lm()))


def test_initial_values_have_one_key_per_matrix():
  def build(matrix, shape):
    axes = (None,) * len(shape)
    return param(normal(1.0), shape, axes, nnx.Rngs(0), matrix=matrix)[...]

  np.testing.assert_array_equal(build((4, 6), (2, 2, 6)), build((4, 6), (4, 6)).reshape(2, 2, 6))
  pair = build((4, 6), (2, 4, 6))
  assert not np.array_equal(pair[0], pair[1])
