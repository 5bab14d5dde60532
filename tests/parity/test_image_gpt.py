"""ImageGPT against transformers: logits, losses and gradients of images and classes; a row of text and pixels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from renamed import Renamed

from t2x.data import Bytes
from t2x.data.tokenizers.palette import PaletteTokenizer
from t2x.domains.pixels import NextPixels, PixelClassification, PixelLM, TextToImage
from t2x.layers import (
  MLP,
  LearnedPositions,
  MultiHeadAttention,
  PreNorm,
  RMSNorm,
  TokenEmbedding,
  quick_gelu,
)
from t2x.layers.arrays import named_leaves
from t2x.models import (
  Block,
  Classifier,
  Decoder,
  LanguageModel,
  LMHead,
  SequenceClassifier,
  Stack,
  mean_tokens,
)
from t2x.samples import Digits, DrawnScenes

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, LAYERS, HIDDEN, CLASSES, COLOURS, TEXT = 16, 2, 2, 24, 10, 6, 70
part = functools.partial


def ours(vocab, length, head):
  norm = part(RMSNorm, epsilon=1e-5)
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=HEADS),
    feed_forward=part(MLP, hidden_dim=HIDDEN, activation=quick_gelu),
    wiring=part(PreNorm, norm=norm),
  )
  return LanguageModel(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=vocab),
    body=part(
      Decoder,
      stack=part(Stack, num_layers=LAYERS, blocks=[block]),
      encoding=part(LearnedPositions, max_length=length),
      final_norm=norm,
    ),
    head=head,
    rngs=nnx.Rngs(0),
  )


def config(vocab, length):
  names = ('attn_pdrop', 'embd_pdrop', 'resid_pdrop')
  sizes = {'n_embd': WIDTH, 'n_layer': LAYERS, 'n_head': HEADS, 'n_inner': HIDDEN}
  return transformers.ImageGPTConfig(
    **sizes, vocab_size=vocab, n_positions=length, num_labels=CLASSES, **dict.fromkeys(names, 0.0)
  )


def renamed(arrays, head=None, classifier=None):
  """Arrays of transformers by the names of ours."""
  own = Renamed(arrays)

  def layer(own, name, their):
    for array, suffix, shape in (
      ('weight', 'kernel', (WIDTH, 3, HEADS, -1)),
      ('bias', 'bias', (3, HEADS, -1)),
    ):
      joined = own.left.pop(f'{their}.attn.c_attn.{array}').reshape(shape)
      for index, letter in enumerate('qkv'):
        own.found[f'{name}.mixer.{letter}.{suffix}'] = joined.take(index, axis=-3)
    own.take(f'{name}.mixer.out.kernel', f'{their}.attn.c_proj.weight', shape=(HEADS, -1, WIDTH))
    own.take(f'{name}.mixer.out.bias', f'{their}.attn.c_proj.bias')
    own.take(f'{name}.mixer_wiring.norm.scale', f'{their}.ln_1.weight')
    own.take(f'{name}.feed_forward_wiring.norm.scale', f'{their}.ln_2.weight')
    for mine, other in (('up', 'c_fc'), ('down', 'c_proj')):
      own.take(f'{name}.feed_forward.{mine}.kernel', f'{their}.mlp.{other}.weight')
      own.take(f'{name}.feed_forward.{mine}.bias', f'{their}.mlp.{other}.bias')

  own.take('embedding.table', 'transformer.wte.weight')
  own.take('body.encoding.table', 'transformer.wpe.weight')
  own.take('body.final_norm.scale', 'transformer.ln_f.weight')
  own.stacked('body.stack.blocks.0', layer, [f'transformer.h.{n}' for n in range(LAYERS)])
  if head:
    own.linear(head, 'lm_head', bias=False)
  if classifier:
    own.linear(classifier, 'score', bias=False)
  assert not own.left, list(own.left)
  return own.found


def named(module, of):
  return {name: of(parameter).detach().numpy() for name, parameter in module.named_parameters()}


def with_arrays(shapes, values):
  names = dict(named_leaves(shapes))
  assert {n: a.shape for n, a in names.items()} == {n: a.shape for n, a in values.items()}
  leaves = [jnp.asarray(values[name]) for name in names]
  return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def step(task, model, batch):
  """The gradient of the total loss, and the metrics."""

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def total(model, batch):
    result, weights = task.sums(model, batch, None), task.weights(batch)
    return sum(term / weights[name] for name, term in result.terms.items()), result.metrics

  return total(model, {name: jnp.asarray(array) for name, array in batch.items()})


def check(system, metrics, gradients, losses, module, rename, compared):
  """Compares losses by the name of the metric, and the gradients of all parameters."""
  for name, wanted in losses.items():
    total, weight = metrics[name]
    compared(*system, total / weight, wanted.item(), rtol=1e-5, atol=0)
  wanted = rename(named(module, lambda p: p.grad))
  largest = max(np.abs(array).max() for array in wanted.values())
  for name, leaf in named_leaves(gradients):
    # A bias of keys has no gradient: what is compared are rounding errors.
    atol = max(1e-5 * np.abs(wanted[name]).max(), 1e-7 * largest)
    compared(*system, leaf, wanted[name], atol=atol, of='gradients')


def pixels(kind, **settings):
  colours = np.linspace(0, 255, COLOURS).reshape(-1, 1)
  task = kind(source=Digits(), image_shape=(5, 5, 1), **settings).bound(PaletteTokenizer(colours))
  return task, task.batches(task.rows('train'), batch_size=4, seed=0)[0]


def shifted(tokens, start):
  return torch.tensor(np.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=start)).long()


def test_loss_logits_and_gradients_equal_image_gpt_of_transformers(perturbed, compared):
  task, batch = pixels(PixelLM)
  model = perturbed(transformers.ImageGPTForCausalImageModeling(config(COLOURS + 1, 25)), std=0.1)
  ids, labels = shifted(batch['tokens'], COLOURS), torch.tensor(batch['tokens']).long()
  logits = model(ids).logits
  loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels)
  loss.backward()
  rename = part(renamed, head='head.out')
  shapes = jax.eval_shape(part(ours, COLOURS + 1, 25, part(LMHead, unpredicted=1)))
  task.check_model(shapes)
  mine = with_arrays(shapes, rename(named(model, lambda p: p)))
  system = 'ImageGPT', 'transformers ImageGPTForCausalImageModeling'
  compared(*system, jax.jit(lambda m, x: m(x).x)(mine, ids.numpy()), logits.detach().numpy())
  gradients, metrics = step(task, mine, batch)
  check(system, metrics, gradients, {'loss': loss}, model, rename, compared)


@pytest.mark.parametrize('weight', [0.0, 0.7])
def test_losses_and_gradients_of_classes_equal_image_gpt_of_transformers(
  weight, perturbed, compared
):
  """Of the classes only, and with the loss of the pixels."""
  auxiliaries = {'pixels': NextPixels(weight=weight)}
  task, batch = pixels(PixelClassification, num_classes=CLASSES, auxiliaries=auxiliaries)
  both = torch.nn.Module()
  classes = transformers.ImageGPTForImageClassification(config(COLOURS + 1, 25))
  both.transformer, both.score = classes.transformer, classes.score
  both.lm_head = torch.nn.Linear(WIDTH, COLOURS, bias=False)
  perturbed(both, std=0.1)
  ids, labels = shifted(batch['tokens'], COLOURS), torch.tensor(batch['tokens']).long()
  main = classes(ids, labels=torch.tensor(batch['label']).long()).loss
  logits = both.lm_head(both.transformer(ids).last_hidden_state)
  generative = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels)
  (main + weight * generative).backward()
  rename = part(renamed, head='head.language_head.out', classifier='head.classifier.out')
  head = part(
    SequenceClassifier,
    pool=mean_tokens,
    classifier=part(Classifier, num_classes=CLASSES, use_bias=False),
    language_head=part(LMHead, unpredicted=1),
  )
  shapes = jax.eval_shape(part(ours, COLOURS + 1, 25, head))
  task.check_model(shapes)
  mine = with_arrays(shapes, rename(named(both, lambda p: p)))
  gradients, metrics = step(task, mine, batch)
  system = 'classes of ImageGPT', 'transformers ImageGPTForImageClassification'
  losses = {'loss': main, 'pixels_loss': generative}
  check(system, metrics, gradients, losses, both, rename, compared)


def test_text_and_pixels_in_one_row_equal_the_loss_of_dalle_on_image_gpt(perturbed, compared):
  """The model is that of transformers; the loss is that of DALL-E: an eighth for text, seven for pixels."""
  colours = np.random.default_rng(0).uniform(0, 255, (COLOURS, 3))
  palette = PaletteTokenizer(colours, Bytes().fit(list))
  task = TextToImage(
    source=DrawnScenes(examples={'train': 8}), image_shape=(5, 5, 3), text_length=TEXT
  ).bound(palette)
  batch = task.batches(task.rows('train'), batch_size=4, seed=0)[0]
  vocab, length = palette.vocab_size, TEXT + 25
  assert (batch['tokens'][:, :TEXT] == palette.pad_id).any()
  # The head of transformers has one logit less than the embedding.
  model = transformers.ImageGPTForCausalImageModeling(config(vocab + 1, length))
  model.transformer.wte = torch.nn.Embedding(vocab, WIDTH)
  perturbed(model, std=0.1)
  tokens = torch.tensor(batch['tokens']).long()
  logits = model(shifted(batch['tokens'], palette.bos_id)).logits.transpose(1, 2)
  entropy = torch.nn.functional.cross_entropy
  text = entropy(logits[..., :TEXT], tokens[:, :TEXT], ignore_index=palette.pad_id)
  image = entropy(logits[..., TEXT:], tokens[:, TEXT:])
  ((text + 7 * image) / 8).backward()
  rename = part(renamed, head='head.out')
  shapes = jax.eval_shape(part(ours, vocab, length, LMHead))
  task.check_model(shapes)
  mine = with_arrays(shapes, rename(named(model, lambda p: p)))
  gradients, metrics = step(task, mine, batch)
  system = 'DALL-E, second stage', 'transformers ImageGPT, formula of the loss'
  losses = {'loss': image, 'text_loss': text}
  check(system, metrics, gradients, losses, model, rename, compared)
