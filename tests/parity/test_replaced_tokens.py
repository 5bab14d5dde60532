"""ELECTRA's generator and discriminator against transformers, with shared embeddings."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tasks
from flax import nnx
from renamed import Renamed

from t2x.data import Bytes, TextFiles
from t2x.layers import (
  MLP,
  LayerNorm,
  LearnedPositions,
  MultiHeadAttention,
  PostNorm,
  TokenEmbedding,
  gelu_exact,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Encoder, MaskedLMHead, Stack, WithGenerator
from t2x.tasks import MaskedPairs, ReplacedTokenDetection

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

VOCAB, LENGTH, HEADS, LAYERS, EMBEDDING, WIDTH, GENERATOR, HIDDEN = 264, 40, 2, 2, 12, 24, 16, 28
SYSTEM = 'ELECTRA', 'transformers ElectraForMaskedLM and ElectraForPreTraining'
part = functools.partial


def ours():
  norm = part(LayerNorm, epsilon=1e-12)
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=HEADS),
    feed_forward=part(MLP, hidden_dim=HIDDEN, activation=gelu_exact),
    wiring=part(PostNorm, norm=norm),
  )
  body = part(Encoder, input_dim=EMBEDDING, stack=part(Stack, num_layers=LAYERS, blocks=[block]))
  return WithGenerator(
    d_model=WIDTH,
    generator_dim=GENERATOR,
    embedding_dim=EMBEDDING,
    embedding=part(TokenEmbedding, vocab_size=VOCAB, num_types=2),
    body=part(body, encoding=part(LearnedPositions, max_length=LENGTH), input_norm=norm),
    generator=body,
    head=part(MaskedLMHead, embedding_dim=EMBEDDING, norm=norm),
    rngs=nnx.Rngs(0),
  )


def theirs(perturbed):
  """The generator and the discriminator, whose embeddings are one module."""

  def config(width):
    return transformers.ElectraConfig(
      vocab_size=VOCAB,
      embedding_size=EMBEDDING,
      hidden_size=width,
      num_hidden_layers=LAYERS,
      num_attention_heads=HEADS,
      intermediate_size=HIDDEN,
      max_position_embeddings=LENGTH,
    )

  torch.manual_seed(0)
  generator = transformers.ElectraForMaskedLM(config(GENERATOR))
  discriminator = transformers.ElectraForPreTraining(config(WIDTH))
  generator.electra.embeddings = discriminator.electra.embeddings
  generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
  both = torch.nn.ModuleDict({'generator': generator, 'discriminator': discriminator})
  return perturbed(both, 0.1)


def renamed(tensors):
  """The values, or gradients, of their parameters by the names of ours."""
  own = Renamed(tensors)

  def layer(own, name, their):
    attention = f'{their}.attention'
    for short, long in {'q': 'query', 'k': 'key', 'v': 'value'}.items():
      own.linear(f'{name}.mixer.{short}', f'{attention}.self.{long}', outputs=(HEADS, -1))
    own.linear(f'{name}.mixer.out', f'{attention}.output.dense', inputs=(HEADS, -1))
    own.norm(f'{name}.mixer_wiring.norm', f'{attention}.output.LayerNorm')
    own.linear(f'{name}.feed_forward.up', f'{their}.intermediate.dense')
    own.linear(f'{name}.feed_forward.down', f'{their}.output.dense')
    own.norm(f'{name}.feed_forward_wiring.norm', f'{their}.output.LayerNorm')

  def body(name, their):
    own.linear(f'{name}.projection', f'{their}.embeddings_project')
    layers = [f'{their}.encoder.layer.{n}' for n in range(LAYERS)]
    own.stacked(f'{name}.stack.blocks.0', layer, layers)

  # `named_parameters` lists a shared parameter once, under its first name.
  embeddings = 'generator.electra.embeddings'
  own.take('embedding.table', f'{embeddings}.word_embeddings.weight')
  own.take('embedding.types', f'{embeddings}.token_type_embeddings.weight')
  own.take('body.encoding.table', f'{embeddings}.position_embeddings.weight')
  own.norm('body.input_norm', f'{embeddings}.LayerNorm')
  body('generator', 'generator.electra')
  body('body', 'discriminator.electra')
  own.linear('head.transform', 'generator.generator_predictions.dense')
  own.norm('head.norm', 'generator.generator_predictions.LayerNorm')
  own.take('head.bias', 'generator.generator_lm_head.bias')
  own.linear('detector.transform', 'discriminator.discriminator_predictions.dense')
  own.linear('detector.out', 'discriminator.discriminator_predictions.dense_prediction')
  assert not own.left, list(own.left)
  return own.found


@pytest.fixture
def task(tmp_path):
  tiny_tasks.write_data(tmp_path)
  path = str(tmp_path / 'documents.txt')
  task = MaskedPairs(
    source=TextFiles(train=path, validation=path, separator='\n\n'),
    tokenizer=Bytes(),
    length=LENGTH,
    rate=0.3,
    mask_rate=0.85,
    random_rate=0.0,
    auxiliaries={'detection': ReplacedTokenDetection()},
  )
  return task.bound(task.fit_tokenizer())


def test_losses_and_gradients_equal_electra_of_transformers(task, compared, perturbed):
  """Of pairs of texts with types, masks and padding from the transform of the task, with the same sampled tokens."""
  batch = task.batches(task.rows('train'), batch_size=4, seed=0)[0]
  models = theirs(perturbed)
  values = {
    name: jnp.asarray(array)
    for name, array in renamed(
      {n: p.detach().numpy() for n, p in models.named_parameters()}
    ).items()
  }
  shapes = jax.eval_shape(ours)
  names = dict(named_leaves(shapes))
  assert {n: a.shape for n, a in names.items()} == {n: a.shape for n, a in values.items()}
  task.check_model(shapes)
  model = jax.tree.unflatten(jax.tree.structure(shapes), [values[name] for name in names])

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def step(model, batch):
    result, weights = task.sums(model, batch, None), task.weights(batch)
    out = task.hidden(model, batch, None)
    drawn = task.auxiliaries['detection'].samples(model, out, batch, None)
    return sum(total / weights[name] for name, total in result.terms.items()), (result, drawn)

  slopes, (result, drawn) = step(model, batch)
  tokens, segments = batch['tokens'].astype(np.int64), batch['segments'] != 0
  assert not segments.all() and batch['types'].any()
  labels, ids, original = np.full_like(tokens, -100), tokens.copy(), tokens.copy()
  for row, (places, targets, weights) in enumerate(
    zip(batch['masked_positions'], batch['labels'], batch['weights'], strict=True)
  ):
    for place, target, sample in zip(
      places[weights > 0], targets[weights > 0], drawn[row][weights > 0], strict=True
    ):
      labels[row, place] = original[row, place] = target
      ids[row, place] = sample
  replaced = ids != original
  settings = {
    'attention_mask': torch.tensor(segments * 1),
    'token_type_ids': torch.tensor(batch['types'].astype(np.int64)),
  }
  generated = models['generator'](torch.tensor(tokens), labels=torch.tensor(labels), **settings)
  detected = models['discriminator'](
    torch.tensor(ids), labels=torch.tensor(replaced * 1), **settings
  )
  (generated.loss + 50 * detected.loss).backward()
  for name, loss in (('loss', generated.loss), ('detection_loss', detected.loss)):
    total, weight = result.metrics[name]
    compared(*SYSTEM, total / weight, loss.item())
  right = ((detected.logits > 0).numpy() == replaced)[segments]
  assert [float(n) for n in result.metrics['detection_accuracy']] == [right.sum(), segments.sum()]
  gradients = renamed({n: p.grad.numpy() for n, p in models.named_parameters()})
  largest = max(np.abs(g).max() for g in gradients.values())
  for name, slope in named_leaves(slopes):
    atol = 1e-5 * max(np.abs(gradients[name]).max(), 1e-2 * largest)
    compared(*SYSTEM, slope, gradients[name], atol=atol, of='gradients')
