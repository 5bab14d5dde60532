"""The start screen: counts are the model's, costs are those of the formula by hand."""

import functools
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from t2x.data import Bytes, TextFiles
from t2x.layers import (
  MLP,
  Dense,
  DenseScores,
  DynamicConvolution,
  FactorizedDenseScores,
  FactorizedRandomScores,
  LearnedGrid,
  LearnedPositions,
  LightweightConvolution,
  MultiHeadAttention,
  PatchEmbedding,
  Plus,
  PlusAlpha,
  RandomScores,
  ShawPositions,
  Synthesizer,
  TokenEmbedding,
)
from t2x.models import (
  Block,
  Classifier,
  Decoder,
  Encoder,
  EncoderDecoder,
  LanguageModel,
  LMHead,
  MixtureOfSoftmaxes,
  Stack,
  TiedHead,
  VisionTransformer,
)
from t2x.parallel import Mesh
from t2x.tasks import CausalLM, ImageClassification
from t2x.train import AdamW, Experiment, Run, Trainer
from t2x.train.summary import (
  attention_kernels,
  end_screen,
  flops_per_token,
  model_table,
  parameter_screen,
  row_lengths,
  sample_text,
  start_screen,
)
from t2x.train.writers import JsonLines

# Projections and feed-forward of a layer of width 16 with a hidden dimension of 32.
LAYER = 4 * 16 * 16 + 2 * 16 * 32
TEXT = TextFiles(train='none')


def parts(kernel=None, **settings):
  """The pieces of tiny models: 3 layers, width 16."""
  attention = functools.partial(MultiHeadAttention, num_heads=2, **(kernel or {}))
  block = functools.partial(
    Block, mixer=attention, feed_forward=functools.partial(MLP, hidden_dim=32)
  )
  stack = functools.partial(Stack, **{'num_layers': 3, 'blocks': [block]} | settings)
  cross = functools.partial(Stack, num_layers=3, blocks=[functools.partial(block, cross=attention)])
  table = functools.partial(TokenEmbedding, vocab_size=261, num_types=2)
  return stack, cross, table


LEARNED = functools.partial(LearnedPositions, max_length=64)


def decoder(head=TiedHead, kernel=None, encoding=LEARNED, **settings):
  stack, _, table = parts(kernel, **settings)
  body = functools.partial(Decoder, stack=stack, encoding=encoding)
  return jax.eval_shape(
    lambda: LanguageModel(d_model=16, embedding=table, body=body, head=head, rngs=nnx.Rngs(0))
  )


def encoder_decoder(encoding=LEARNED, **settings):
  stack, cross, table = parts()
  encoder = functools.partial(Encoder, stack=stack, encoding=encoding)
  body = functools.partial(Decoder, stack=cross, encoding=encoding)
  settings = {'d_model': 16, 'embedding': table, 'encoder': encoder, 'decoder': body} | settings
  return jax.eval_shape(lambda: EncoderDecoder(**settings, rngs=nnx.Rngs(0)))


def test_the_table_counts_every_parameter_and_names_stacked_layers():
  model = decoder()
  table = model_table(model)
  total = sum(leaf.size for leaf in jax.tree.leaves(model))
  assert table.splitlines()[-1].split() == ['total', f'{total:,}']
  row = next(line for line in table.splitlines() if 'mixer.q.kernel' in line)
  assert ' '.join(row.split()[1:]) == '3 x 16 x 2 x 8 layers embed heads head_dim 768'


@pytest.mark.parametrize('head', [TiedHead, LMHead])
def test_flops_of_a_decoder_are_6n_plus_12ldt(head):
  # Positions and types are looked up; the token table is multiplied where, and only where, it is tied.
  flops, told = flops_per_token(decoder(head), {'': 32})
  assert flops == 6 * (3 * LAYER + 261 * 16) + 12 * 3 * 16 * 32
  assert 'T = 32' in told


def test_layers_that_share_parameters_cost_as_often_as_they_are_used():
  assert flops_per_token(decoder(num_groups=1), {'': 32}) == flops_per_token(decoder(), {'': 32})


def test_a_mixture_asks_the_table_once_a_softmax():
  def flops(count):
    head = functools.partial(MixtureOfSoftmaxes, num_softmaxes=count)
    return flops_per_token(decoder(head), {'': 32})[0]

  # Each: the table, a projection to the hidden vector that asks it, a prior.
  assert flops(4) - flops(1) == 6 * 3 * (261 * 16 + 16 * 16 + 16)


def test_each_side_of_an_encoder_decoder_costs_its_own_tokens():
  flops, _ = flops_per_token(encoder_decoder(), {'encoder': 24, 'decoder': 8})
  source = 6 * 3 * LAYER + 12 * 3 * 16 * 24
  target = 6 * (3 * (LAYER + 4 * 16 * 16) + 261 * 16) + 12 * 3 * 16 * (8 + 24)
  assert flops == pytest.approx((24 * source + 8 * target) / 32)


def test_the_source_table_beside_one_of_the_target_is_only_looked_up():
  def flops(**settings):
    return flops_per_token(encoder_decoder(**settings), {'encoder': 24, 'decoder': 8})[0]

  same, small = (functools.partial(TokenEmbedding, vocab_size=size) for size in (261, 100))
  assert flops(target_embedding=same) == flops()
  assert flops() - flops(target_embedding=small) == 6 * (261 - 100) * 16 * 8 / 32
  assert flops(target_embedding=same, head=LMHead) == flops()


def synthesizer(scores, **settings):
  return functools.partial(Synthesizer, num_heads=2, scores=scores, **settings)


random = functools.partial(RandomScores, max_length=64)
dense = functools.partial(DenseScores, max_length=64)
# Projections of a layer, then other multiply-adds for a token: 2 heads of 8 features, 32 tokens.
MIXERS = {
  'random': (synthesizer(random), 2 * 16 * 16 + 16 * 32),
  'random_plus': (synthesizer(random, mix=Plus), 4 * 16 * 16 + 2 * 16 * 32),
  'random_plus_alpha': (synthesizer(random, mix=PlusAlpha), 4 * 16 * 16 + 2 * 16 * 32),
  # One matrix [8, 64] meets the queries of both heads.
  'dense': (synthesizer(dense), 3 * 16 * 16 + 2 * 8 * 64 + 16 * 32),
  'dense_plus': (synthesizer(dense, mix=Plus), 4 * 16 * 16 + 2 * 8 * 64 + 2 * 16 * 32),
  'factorized_dense': (
    synthesizer(functools.partial(FactorizedDenseScores, factors=(4, 16))),
    3 * 16 * 16 + 2 * 8 * (4 + 16) + 16 * 32,
  ),
  # A row of rank 3 meets the rows of 32 tokens, in both heads.
  'factorized_random': (
    synthesizer(functools.partial(FactorizedRandomScores, max_length=64, rank=3)),
    2 * 16 * 16 + 2 * 3 * 32 + 16 * 32,
  ),
  # The gate's two halves, 5 taps for each of 16 channels, the projection.
  'lightweight': (
    functools.partial(LightweightConvolution, num_heads=4, kernel_size=5),
    2 * 16 * 16 + 5 * 16 + 16 * 16,
  ),
  'dynamic': (
    functools.partial(DynamicConvolution, num_heads=4, kernel_size=5),
    2 * 16 * 16 + 16 * 4 * 5 + 5 * 16 + 16 * 16,
  ),
}


def of_mixer(mixer, **settings):
  block = functools.partial(Block, mixer=mixer, feed_forward=functools.partial(MLP, hidden_dim=32))
  return decoder(blocks=[block], **settings)


@pytest.mark.parametrize('name', MIXERS)
@pytest.mark.parametrize('num_groups', [None, 1])
def test_other_mixers_cost_what_they_multiply(name, num_groups):
  mixer, products = MIXERS[name]
  flops, _ = flops_per_token(of_mixer(mixer, num_groups=num_groups), {'': 32})
  assert flops == 6 * (3 * (products + 2 * 16 * 32) + 261 * 16)


SHAW = functools.partial(ShawPositions, head_dim=8, max_distance=5)


def test_relative_keys_meet_the_queries_of_every_head_and_layer():
  def more(of):
    return of(SHAW) - of(LEARNED)

  def of_attention(encoding):
    return flops_per_token(decoder(encoding=encoding), {'': 32})[0]

  def of_pair(encoding):
    return flops_per_token(encoder_decoder(encoding), {'encoder': 24, 'decoder': 8})[0]

  def of_random(encoding):
    return flops_per_token(of_mixer(MIXERS['random'][0], encoding=encoding), {'': 32})[0]

  # Distances -5 .. 5, 8 features, 2 heads, 3 layers; cross-attention and tables have no such keys.
  assert more(of_attention) == more(of_pair) == 6 * 3 * 2 * 11 * 8
  assert more(of_random) == 0


def traced(jaxpr):
  """Multiply-adds of all matrix products in a program."""
  total = 0
  for one in jaxpr.eqns:
    if one.primitive.name == 'dot_general':
      (contracted, _), _ = one.params['dimension_numbers']
      sizes = [one.invars[0].aval.shape[axis] for axis in contracted]
      total += math.prod([*one.outvars[0].aval.shape, *sizes])
    for value in one.params.values():
      inside = getattr(value, 'jaxpr', value)
      if hasattr(inside, 'eqns'):
        total += traced(inside) * one.params.get('length', 1)
  return total


@pytest.mark.parametrize('encoding', [LEARNED, SHAW], ids=['learned', 'shaw'])
@pytest.mark.parametrize('name', ['attention', *MIXERS])
def test_the_reckoning_is_that_of_the_traced_program(name, encoding):
  attention = functools.partial(MultiHeadAttention, num_heads=2, kernel=Dense())
  mixer = MIXERS.get(name, (attention,))[0]
  model = of_mixer(mixer, encoding=encoding)
  jaxpr = jax.make_jaxpr(lambda model, ids: model(ids).x)(model, jnp.zeros((1, 32), jnp.int32))
  flops, _ = flops_per_token(model, {'': 32})
  # Taps of a convolution are added up one by one.
  taps = 3 * 5 * 16 if name in ('lightweight', 'dynamic') else 0
  assert flops == 6 * (traced(jaxpr.jaxpr) / 32 + taps)


def test_images_are_counted_in_patches():
  stack, _, _ = parts()
  model = jax.eval_shape(
    lambda: VisionTransformer(
      d_model=16,
      embedding=functools.partial(PatchEmbedding, patch_size=2, channels=1),
      positions=functools.partial(LearnedGrid, height=4, width=4),
      body=functools.partial(Encoder, stack=stack),
      head=functools.partial(Classifier, num_classes=10),
      rngs=nnx.Rngs(0),
    )
  )
  task = ImageClassification(source=TEXT, image_shape=(8, 8, 1), num_classes=10)
  assert row_lengths(task, model) == {'': 17}
  assert attention_kernels(model, task)[0].startswith('Dense()')


def test_the_kernel_that_auto_picks_is_told_with_its_reason():
  long = CausalLM(source=TEXT, tokenizer=Bytes(), length=4096)
  assert 'Blockwise' in attention_kernels(decoder(), long)[0]
  assert '4096 x 4096' in attention_kernels(decoder(), long)[0]
  fixed = attention_kernels(decoder(kernel={'kernel': Dense()}), long)
  assert len(fixed) == 1
  assert fixed[0].startswith('Dense() under')


def run_of(model, folder='runs/x', **settings):
  """A run without data and devices' memory."""
  run = object.__new__(Run)
  run.task = CausalLM(source=TEXT, tokenizer=Bytes(), length=32)
  run.trainer = Trainer(**{'num_steps': 10, 'batch_size': 4, 'optimizer': AdamW()} | settings)
  run.experiment = Experiment(task=run.task, trainer=run.trainer)
  run.folder, run.mesh = Path(folder), Mesh(num_devices=1).build()
  run.abstract = type('State', (), {'model': model})
  return run


@pytest.mark.parametrize('width', [80, 100])
def test_the_start_screen_says_all_in_a_few_lines_that_fit(width):
  run = run_of(decoder(), eval_every=4, eval_batches=3, ema_decay=0.9)
  screen = start_screen(run, [{}] * 20, 5, width)
  text = re.sub('\n *', ' ', screen)
  for part in (
    'LanguageModel, ',
    ': 3 layers, length 64, embed 16, mlp 32, heads 2 x 8',
    'FLOPs       ',
    f'1 x cpu, jax {jax.__version__}, float32 ',
    'under Causal() ',
    '20 rows, train split of TextFiles',
    '5 to 10 (resumed), batches of 4 rows, 2 epochs',
    'validation split every 4 steps (3 batches) and at the end',
    'EMA weights (decay 0.9)',
    'runs/x',
  ):
    assert part in text, part
  assert len(screen.splitlines()) <= 13
  assert max(map(len, screen.splitlines())) <= width


def test_the_parameter_table_and_the_reckoning_are_apart_from_the_start_screen():
  run = run_of(decoder())
  assert '6 (N + P)' in parameter_screen(run)
  assert model_table(decoder()) in parameter_screen(run)
  assert 'mixer.q.kernel' not in start_screen(run, [{}] * 20, 0, 80)


def test_both_sides_of_an_encoder_decoder_have_their_layers_and_widths():
  screen = start_screen(run_of(encoder_decoder()), [{}], 0, 100)
  for part in ('encoder', 'decoder'):
    assert re.search(rf'\n {{12}}{part} [\d,]+: 3 layers, .*mlp 32', screen), screen


def test_the_end_screen_has_time_best_and_last_metrics_folder_and_commands(tmp_path):
  run = run_of(decoder(), tmp_path / 'a run', num_steps=1000)
  lines = JsonLines(run.folder / 'metrics.jsonl')
  for step, loss in ((250, math.nan), (500, 1.25), (750, 1.25), (1000, 1.5)):
    lines.write(step, 'train', {'loss': 0.5})
    lines.write(step, 'eval', {'loss': loss})
  lines.close()
  screen = end_screen(run, {'loss': 1.5, 'eval_tokens': 245111.0}, 3723.0, 80)
  folder = tmp_path / 'a run'
  assert screen.splitlines()[1:4] == [
    'finished    1,000 steps in 1:02:03',
    'best        loss 1.25 at step 750',
    'last        loss 1.5  eval_tokens 245,111',
  ]
  assert ''.join(str(folder).split()) in ''.join(screen.split())
  assert screen.splitlines()[-2:] == [
    f"next        t2x eval '{folder}'",
    f"            t2x generate '{folder}' --prompt 'TEXT'",
  ]


def test_samples_are_cut_to_three_lines_of_the_terminal():
  lines = sample_text({'prompt': 'a\nb', 'output': 'x' * 500}, 80).splitlines()
  assert lines[0] == r"  prompt   'a\nb'"
  assert len(lines) == 5
  assert max(map(len, lines)) == 80
  assert lines[-1].split() == ['...']
