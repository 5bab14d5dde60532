"""Encoder-decoders and encoders of sources that are no texts, against transformers with the same weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.decode import AtCurrentLength, AverageLength, Beam, Greedy, generate
from t2x.domains.speech import AudioStem
from t2x.layers import (
  MLP,
  LayerNorm,
  LearnedGrid,
  LearnedPositions,
  MultiHeadAttention,
  PatchEmbedding,
  PreNorm,
  Sinusoidal,
  TokenEmbedding,
  Tokens,
  gelu,
  gelu_exact,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Decoder, Encoder, EncoderDecoder, Stack

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

part = functools.partial
WIDTH, HEADS, HIDDEN, VOCAB, LAYERS = 16, 2, 24, 11, 2
LENGTH, EOS, PAD, START = 12, 1, 0, 2
# With this seed, the pictures have different captions.
SEED = 7
FEATURES, FRAMES = 6, 18
TARGET = np.random.default_rng(0).integers(VOCAB, size=(3, 7))


def normal(seed, *shape):
  # Not one generator for all tests, whose numbers would depend on the tests that run.
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


IMAGES, AUDIO = normal(0, 3, 8, 12, 3), normal(1, 2, FRAMES, FEATURES)


def by_head(weight):
  """A matrix [inputs, outputs] with its outputs, or a bias with its elements, split into heads."""
  return weight.reshape(*weight.shape[:-1], HEADS, WIDTH // HEADS)


def norm(read, name):
  return {'scale': read(f'{name}.weight'), 'bias': read(f'{name}.bias')}


def linear(read, name):
  """The parameters of torch's Linear."""
  return {'kernel': read(f'{name}.weight').T, 'bias': read(f'{name}.bias')}


def attention(q, k, v, out):
  heads = {
    name: {key: by_head(array) for key, array in one.items()}
    for name, one in (('q', q), ('k', k), ('v', v))
  }
  kernel = out['kernel'].reshape(HEADS, WIDTH // HEADS, WIDTH)
  return heads | {'out': {'kernel': kernel, 'bias': out['bias']}}


def flat(tree, start=''):
  for name, value in tree.items():
    path = f'{start}.{name}' if start else name
    if isinstance(value, dict):
      yield from flat(value, path)
    else:
      yield path, value


def layers(trees):
  """Layers of one kind as the arrays of a stack."""
  named = [dict(flat(tree)) for tree in trees]
  return {name: np.stack([one[name] for one in named]) for name in named[0]}


def split(read, name, num):
  """The matrices that GPT-2 keeps in one Conv1D, [inputs, num * outputs]."""
  kernels = np.split(read(f'{name}.weight'), num, axis=1)
  biases = np.split(read(f'{name}.bias'), num)
  return [{'kernel': k, 'bias': b} for k, b in zip(kernels, biases, strict=True)]


def encoder_layer(read, i):
  name = f'encoder.layers.{i}'
  q, k, v, o = (linear(read, f'{name}.attention.{c}_proj') for c in 'qkvo')
  return {
    'mixer': attention(q, k, v, o),
    'mixer_wiring.norm': norm(read, f'{name}.layernorm_before'),
    'feed_forward.up': linear(read, f'{name}.mlp.fc1'),
    'feed_forward.down': linear(read, f'{name}.mlp.fc2'),
    'feed_forward_wiring.norm': norm(read, f'{name}.layernorm_after'),
  }


def decoder_layer(read, i):
  name = f'decoder.transformer.h.{i}'
  own = [*split(read, f'{name}.attn.c_attn', 3), *split(read, f'{name}.attn.c_proj', 1)]
  cross = f'{name}.crossattention'
  reading = [
    *split(read, f'{cross}.q_attn', 1),
    *split(read, f'{cross}.c_attn', 2),
    *split(read, f'{cross}.c_proj', 1),
  ]
  return {
    'mixer': attention(*own),
    'mixer_wiring.norm': norm(read, f'{name}.ln_1'),
    'cross': attention(*reading),
    'cross_wiring.norm': norm(read, f'{name}.ln_cross_attn'),
    'feed_forward.up': split(read, f'{name}.mlp.c_fc', 1)[0],
    'feed_forward.down': split(read, f'{name}.mlp.c_proj', 1)[0],
    'feed_forward_wiring.norm': norm(read, f'{name}.ln_2'),
  }


def captioner_arrays(read):
  """Parameters, or their gradients, of transformers' captioner in the names and shapes of ours."""
  patches = 'encoder.embeddings.patch_embeddings.projection'
  return dict(
    flat(
      {
        'source_embedding.class_token': read('encoder.embeddings.cls_token')[0, 0],
        'source_embedding.projection.kernel': read(f'{patches}.weight').transpose(2, 3, 1, 0),
        'source_embedding.projection.bias': read(f'{patches}.bias'),
        'encoder.encoding.table': read('encoder.embeddings.position_embeddings')[0],
        'encoder.stack.blocks.0': layers([encoder_layer(read, i) for i in range(LAYERS)]),
        'encoder.final_norm': norm(read, 'encoder.layernorm'),
        'embedding.table': read('decoder.transformer.wte.weight'),
        'decoder.encoding.table': read('decoder.transformer.wpe.weight'),
        'decoder.stack.blocks.0': layers([decoder_layer(read, i) for i in range(LAYERS)]),
        'decoder.final_norm': norm(read, 'decoder.transformer.ln_f'),
      }
    )
  )


def block(activation, epsilon, **sublayers):
  return part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=HEADS),
    feed_forward=part(MLP, hidden_dim=HIDDEN, activation=activation),
    wiring=part(PreNorm, norm=part(LayerNorm, epsilon=epsilon)),
    **sublayers,
  )


def body(cls, num_layers, one, epsilon, **settings):
  stack = part(Stack, num_layers=num_layers, blocks=[one])
  return part(cls, stack=stack, final_norm=part(LayerNorm, epsilon=epsilon), **settings)


def captioner():
  cross = part(MultiHeadAttention, num_heads=HEADS)
  return EncoderDecoder(
    d_model=WIDTH,
    source_embedding=part(PatchEmbedding, patch_size=4),
    embedding=part(TokenEmbedding, vocab_size=VOCAB),
    encoder=body(
      Encoder,
      LAYERS,
      block(gelu_exact, 1e-12),
      1e-12,
      encoding=part(LearnedGrid, height=2, width=3),
    ),
    decoder=body(
      Decoder,
      LAYERS,
      block(gelu, 1e-5, cross=cross),
      1e-5,
      encoding=part(LearnedPositions, max_length=LENGTH),
    ),
    rngs=nnx.Rngs(0),
  )


def perturbed(build):
  """transformers' model with N(0, 0.1) added to every parameter."""
  torch.manual_seed(SEED)
  model = build()
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for parameter in model.parameters():
      if parameter.requires_grad:
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
  return model.eval()


def reader(model, value):
  parameters = dict(model.named_parameters())
  return lambda name: value(parameters[name]).detach().numpy()


def with_arrays(model, arrays):
  """A copy of our model with these parameters, which must be all of them."""
  names = [name for name, _ in named_leaves(model)]
  assert set(names) == set(arrays)
  _, structure = jax.tree.flatten(model)
  return jax.tree.unflatten(structure, [jnp.asarray(arrays[name]) for name in names])


def joined(ours, wanted):
  """All gradients of ours and of theirs in one array each, relative to the largest of theirs."""
  got, names = dict(named_leaves(ours)), sorted(wanted)
  arrays = [np.concatenate([np.asarray(g[n]).ravel() for n in names]) for g in (got, wanted)]
  return [array / np.abs(arrays[1]).max() for array in arrays]


@pytest.fixture(scope='module')
def captioners():
  """Ours and theirs with the same parameters."""
  encoder = transformers.ViTConfig(
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=HIDDEN,
    image_size=(8, 12),
    patch_size=4,
  )
  decoder = transformers.GPT2Config(
    n_embd=WIDTH,
    n_layer=LAYERS,
    n_head=HEADS,
    n_inner=HIDDEN,
    vocab_size=VOCAB,
    n_positions=LENGTH,
    add_cross_attention=True,
    is_decoder=True,
    bos_token_id=START,
    eos_token_id=EOS,
  )
  config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
  theirs = perturbed(lambda: transformers.VisionEncoderDecoderModel(config=config))
  read = reader(theirs, lambda parameter: parameter)
  return with_arrays(captioner(), captioner_arrays(read)), theirs


def test_a_captioner_equals_the_vision_encoder_decoder_of_transformers(captioners, compared):
  ours, theirs = captioners
  named = 'CPTR', 'transformers VisionEncoderDecoderModel'
  weights = normal(3, *TARGET.shape, VOCAB)
  pixels = torch.tensor(IMAGES.transpose(0, 3, 1, 2))
  logits = theirs(pixel_values=pixels, decoder_input_ids=torch.tensor(TARGET)).logits

  @jax.jit
  @functools.partial(jax.value_and_grad, has_aux=True)
  def run(model):
    x = model(jnp.asarray(IMAGES), jnp.asarray(TARGET)).x
    return (x * weights).sum(), x

  (_, got), slopes = run(ours)
  compared(*named, got, logits.detach().numpy())
  (logits * torch.tensor(weights)).sum().backward()
  wanted = captioner_arrays(reader(theirs, lambda parameter: parameter.grad))
  compared(*named, *joined(slopes, wanted), of='gradients')
  theirs.zero_grad()


@pytest.mark.parametrize('width', [1, 3])
def test_a_captioner_generates_the_tokens_of_transformers(captioners, width):
  ours, theirs = captioners
  strategy = Greedy() if width == 1 else Beam(width, AverageLength(1.0), AtCurrentLength())
  start = np.full((len(IMAGES), 1), START, np.int32)
  got = generate(
    ours,
    start,
    np.ones(len(IMAGES), np.int32),
    max_new_tokens=8,
    strategy=strategy,
    eos_id=EOS,
    pad_id=PAD,
    source=IMAGES,
  )
  wanted = theirs.generate(
    torch.tensor(IMAGES.transpose(0, 3, 1, 2)),
    max_new_tokens=8,
    num_beams=width,
    do_sample=False,
    decoder_start_token_id=START,
    eos_token_id=EOS,
    pad_token_id=PAD,
  ).numpy()[:, 1:]
  tokens = np.asarray(got.tokens)[:, 0]
  np.testing.assert_array_equal(tokens[:, : wanted.shape[1]], wanted)
  assert (tokens[:, wanted.shape[1] :] == PAD).all() and len(set(map(tuple, tokens))) > 1


def whisper_layer(read, i):
  name = f'layers.{i}'
  v, o, q = (linear(read, f'{name}.self_attn.{n}') for n in ('v_proj', 'out_proj', 'q_proj'))
  # Whisper has no bias of keys, which changes no probability.
  k = {'kernel': read(f'{name}.self_attn.k_proj.weight').T, 'bias': np.zeros(WIDTH, np.float32)}
  return {
    'mixer': attention(q, k, v, o),
    'mixer_wiring.norm': norm(read, f'{name}.self_attn_layer_norm'),
    'feed_forward.up': linear(read, f'{name}.fc1'),
    'feed_forward.down': linear(read, f'{name}.fc2'),
    'feed_forward_wiring.norm': norm(read, f'{name}.final_layer_norm'),
  }


def whisper_arrays(read):
  return dict(
    flat(
      {
        'stem.first.kernel': read('conv1.weight').transpose(2, 1, 0),
        'stem.first.bias': read('conv1.bias'),
        'stem.second.kernel': read('conv2.weight').transpose(2, 1, 0),
        'stem.second.bias': read('conv2.bias'),
        'body.stack.blocks.0': layers([whisper_layer(read, i) for i in range(LAYERS)]),
        'body.final_norm': norm(read, 'layer_norm'),
      }
    )
  )


class Audio(nnx.Module):
  """The stem and the body of Whisper's encoder."""

  def __init__(self, rngs):
    encoding = part(Sinusoidal, exponent_shift=1)
    self.stem = AudioStem(WIDTH, num_features=FEATURES, rngs=rngs)
    one = block(gelu_exact, 1e-5)
    self.body = body(Encoder, LAYERS, one, 1e-5, encoding=encoding)(WIDTH, rngs=rngs)

  def __call__(self, frames, tokens=None):
    x, tokens = self.stem(frames, tokens)
    return self.body(x, tokens=tokens).x


@pytest.fixture(scope='module')
def encoders():
  config = transformers.WhisperConfig(
    d_model=WIDTH,
    encoder_layers=LAYERS,
    encoder_attention_heads=HEADS,
    encoder_ffn_dim=HIDDEN,
    num_mel_bins=FEATURES,
    max_source_positions=FRAMES // 2,
  )
  theirs = perturbed(lambda: transformers.models.whisper.modeling_whisper.WhisperEncoder(config))
  return with_arrays(Audio(nnx.Rngs(0)), whisper_arrays(reader(theirs, lambda p: p))), theirs


def test_the_audio_encoder_equals_the_whisper_encoder_of_transformers(encoders, compared):
  ours, theirs = encoders
  named = 'Whisper encoder', 'transformers WhisperEncoder'
  weights = normal(4, 2, FRAMES // 2, WIDTH)
  hidden = theirs(torch.tensor(AUDIO.transpose(0, 2, 1))).last_hidden_state

  @jax.jit
  @functools.partial(jax.value_and_grad, has_aux=True)
  def run(model):
    x = model(jnp.asarray(AUDIO))
    return (x * weights).sum(), x

  (_, got), slopes = run(ours)
  compared(*named, got, hidden.detach().numpy())
  (hidden * torch.tensor(weights)).sum().backward()
  wanted = whisper_arrays(reader(theirs, lambda parameter: parameter.grad))
  compared(*named, *joined(slopes, wanted), of='gradients')


@pytest.mark.parametrize('length', [7, 8])
def test_padded_audio_equals_audio_without_padding(encoders, length):
  model, _ = encoders
  segments = jnp.asarray(np.arange(FRAMES)[None] < [[length], [FRAMES]], jnp.int32)
  noisy = jnp.asarray(AUDIO).at[0, length:].set(9.0)
  padded = model(noisy, Tokens.row(FRAMES, segments=segments, right_padded=True))
  alone = model(jnp.asarray(AUDIO[:1, :length]))
  num = -(-length // 2)
  assert alone.shape[1] == num
  np.testing.assert_allclose(padded[:1, :num], alone, atol=1e-5)
  np.testing.assert_allclose(padded[1:], model(jnp.asarray(AUDIO[1:])), atol=1e-5)
