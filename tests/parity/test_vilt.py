"""ViLT of configs/models, at a small width, against transformers: rows with padding, logits and gradients."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2x.experiments import read_config
from t2x.layers import Tokens
from tests.helpers.renamed import model_of

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

FILE = Path(__file__).parents[2] / 'configs' / 'models' / 'vilt_b32.gin'
WIDTH, HEADS, HIDDEN, ANSWERS = 12, 2, 20, 5
IMAGES = np.random.default_rng(0).normal(size=(2, 12, 12, 3)).astype(np.float32)
IDS = np.random.default_rng(1).integers(0, 30, (2, 7)).astype(np.int32)
PRESENT = np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)
LABELS = np.array([4, 1])
OVERRIDES = [
  f'd_model={WIDTH}',
  'length=7',
  'grid=3',
  'TokenEmbedding.vocab_size=30',
  'PatchEmbedding.patch_size=4',
  'Stack.num_layers=2',
  f'MultiHeadAttention.num_heads={HEADS}',
  f'MLP.hidden_dim={HIDDEN}',
  f'AnswerClassifier.num_classes={ANSWERS}',
]


def layer(own, name, theirs):
  split = HEADS, WIDTH // HEADS
  for one, there in (('q', 'query'), ('k', 'key'), ('v', 'value')):
    own.linear(f'{name}.mixer.{one}', f'{theirs}.attention.attention.{there}', outputs=split)
  own.linear(f'{name}.mixer.out', f'{theirs}.attention.output.dense', inputs=split)
  own.linear(f'{name}.feed_forward.up', f'{theirs}.intermediate.dense')
  own.linear(f'{name}.feed_forward.down', f'{theirs}.output.dense')
  own.norm(f'{name}.mixer_wiring.norm', f'{theirs}.layernorm_before')
  own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.layernorm_after')


def rename(own):
  embeddings = 'vilt.embeddings'
  text = f'{embeddings}.text_embeddings'
  own.take('tokens.embedding.table', f'{text}.word_embeddings.weight')
  own.take('tokens.embedding.types', f'{text}.token_type_embeddings.weight')
  own.take('tokens.positions.table', f'{text}.position_embeddings.weight')
  own.norm('tokens.norm', f'{text}.LayerNorm')
  own.convolution('image.embedding.projection', f'{embeddings}.patch_embeddings.projection')
  own.take('image.embedding.class_token', f'{embeddings}.cls_token', shape=(WIDTH,))
  own.take('image.positions.table', f'{embeddings}.position_embeddings', shape=(10, WIDTH))
  own.take('types', f'{embeddings}.token_type_embeddings.weight')
  layers = [f'vilt.encoder.layer.{i}' for i in (0, 1)]
  own.stacked('body.stack.blocks.0', layer, layers)
  own.norm('body.final_norm', 'vilt.layernorm')
  own.linear('head.pooler', 'vilt.pooler.dense')
  own.linear('head.up', 'classifier.0')
  own.norm('head.norm', 'classifier.1')
  own.linear('head.out', 'classifier.3')


def test_logits_and_gradients_equal_vilt_of_transformers(compared, perturbed):
  config = transformers.ViltConfig(
    hidden_size=WIDTH,
    num_hidden_layers=2,
    num_attention_heads=HEADS,
    intermediate_size=HIDDEN,
    vocab_size=30,
    max_position_embeddings=7,
    image_size=12,
    patch_size=4,
    num_labels=ANSWERS,
  )
  their = perturbed(transformers.ViltForQuestionAnswering(config), 0.1).double()
  out = their(
    input_ids=torch.tensor(IDS).long(),
    attention_mask=torch.tensor(PRESENT).long(),
    pixel_values=torch.tensor(IMAGES.transpose(0, 3, 1, 2)).double(),
  )
  torch.nn.functional.cross_entropy(out.logits, torch.tensor(LABELS)).backward()
  parameters = dict(their.named_parameters())
  shapes = read_config([FILE], OVERRIDES).build().shapes()

  def loss(arrays):
    tokens = Tokens.row(IDS.shape[1], segments=jnp.asarray(PRESENT), right_padded=True)
    model = model_of(shapes, rename, arrays)
    logits = model(jnp.asarray(IDS), jnp.asarray(IMAGES), tokens={'tokens': tokens}).x
    return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean(), logits

  arrays = {name: one.detach().float().numpy() for name, one in parameters.items()}
  (_, logits), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)
  system = 'ViLT', 'transformers ViltForQuestionAnswering'
  compared(*system, logits, out.logits.detach().numpy())
  largest = max(float(one.grad.abs().max()) for one in parameters.values())
  for name, parameter in parameters.items():
    wanted = parameter.grad.numpy()
    # A bias of keys has no gradient.
    scale = largest if name.endswith('key.bias') else np.abs(wanted).max()
    compared(*system, slopes[name], wanted, atol=1e-5 * scale, of='gradients')
