"""The start screen."""

import functools
from pathlib import Path

import jax
from flax import nnx

from t2x.data import Bytes, TextFiles
from t2x.layers import (
  MLP,
  Dense,
  LearnedGrid,
  LearnedPositions,
  MultiHeadAttention,
  PatchEmbedding,
  TokenEmbedding,
)
from t2x.models import (
  Block,
  Classifier,
  Decoder,
  Encoder,
  EncoderDecoder,
  LanguageModel,
  Stack,
  TiedHead,
  VisionTransformer,
)
from t2x.parallel import Mesh
from t2x.tasks import CausalLM, ImageClassification
from t2x.train import AdamW, Experiment, Run, Trainer
from t2x.train.summary import (
  attention_kernels,
  model_table,
  row_lengths,
  start_screen,
)

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


def test_the_start_screen_has_all_that_a_reader_asks():
  run = object.__new__(Run)  # Without folder and data.
  run.task = CausalLM(source=TEXT, tokenizer=Bytes(), length=32)
  run.trainer = Trainer(num_steps=10, batch_size=4, optimizer=AdamW())
  run.experiment = Experiment(task=run.task, trainer=run.trainer)
  run.folder, run.mesh = Path('runs/x'), Mesh(num_devices=1).build()
  run.abstract = type('State', (), {'model': decoder()})
  screen = start_screen(run, [{}] * 20, 5, ['allocator: glibc'])
  for part in (
    'with causal attention half',
    '1 x cpu',
    'one device',
    'Causal()',
    'TextFiles',
    '20 rows, batches of 4, 2 epochs',
    '5 to 10 (resumed)',
    'runs/x',
    'allocator: glibc',
  ):
    assert part in screen, part
