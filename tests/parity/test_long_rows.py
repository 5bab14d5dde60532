"""Attention for long rows against transformers and the PyTorch code of other projects, with copied weights."""

import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x.layers import (
  BigBird,
  Causal,
  Dense,
  Full,
  GlobalLocalAttention,
  Marked,
  MemoryCompressedAttention,
  MultiHeadAttention,
  NystromAttention,
  Tokens,
  Window,
)

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS = 12, 2
HEAD_DIM = WIDTH // HEADS
# The difference relative to the largest output.
TOLERANCE = 1e-5
MEMORY_COMPRESSED = 'memory-compressed attention', 'memory-compressed-attention'


def copied(tensor, *shape):
  """A PyTorch tensor as a JAX array, reshaped."""
  return jnp.asarray(np.array(tensor.detach().numpy()).reshape(shape or tensor.shape))


def copy_projection(ours, theirs):
  """Copies a torch.nn.Linear into the projection of a head."""
  ours.kernel[...] = copied(theirs.weight.T, WIDTH, HEADS, HEAD_DIM)
  ours.bias[...] = copied(theirs.bias, HEADS, HEAD_DIM)


def remove_output_projection(ours):
  """Makes the output projection the identity: modules of transformers return the joined heads."""
  ours.out.kernel[...] = jnp.eye(WIDTH).reshape(HEADS, HEAD_DIM, WIDTH)


def perturb(module):
  """Moves all parameters of a PyTorch module away from their initial values, which would hide errors."""
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.add_(0.3 * torch.randn_like(parameter))


def inputs(length, rows=2):
  return np.random.default_rng(1).normal(size=(rows, length, WIDTH)).astype(np.float32)


@pytest.fixture
def assert_close(compared):
  """`assert_close(system, reference, actual, expected)`: equal up to the tolerance."""

  def check(system, reference, actual, expected):
    expected = expected.detach().numpy()
    compared(system, reference, actual, expected, atol=TOLERANCE * np.abs(expected).max())

  return check


@pytest.fixture
def same(same_gradient):
  """`same(system, reference, x, theirs, ours, rows)`: equal outputs and gradients up to the tolerance."""

  def check(system, reference, x, theirs, ours, rows=True):
    atol = TOLERANCE * theirs(torch.tensor(x)).abs().max().item()
    same_gradient(system, reference, x, theirs, ours, rows, atol=atol)

  return check


def test_big_bird_equals_block_sparse_attention_of_transformers(same):
  """With the random blocks of the pattern, in training mode: in evaluation mode all of theirs are block 0."""
  from transformers.models.big_bird import modeling_big_bird

  length, block = 44, 4
  pattern = BigBird(length, block, 2)
  config = transformers.BigBirdConfig(
    hidden_size=WIDTH, num_attention_heads=HEADS, block_size=block, num_random_blocks=2
  )
  theirs = modeling_big_bird.BigBirdBlockSparseAttention(config).train()
  perturb(theirs)
  theirs._bigbird_block_rand_mask_with_head = lambda **_: [pattern.random_blocks()[1:-1]] * HEADS
  ours = MultiHeadAttention(WIDTH, num_heads=HEADS, kernel=Dense(), rngs=nnx.Rngs(0))
  for name, projection in (('query', ours.q), ('key', ours.k), ('value', ours.v)):
    copy_projection(projection, getattr(theirs, name))
  remove_output_projection(ours)
  x, is_token = inputs(length), np.ones((2, length), np.float32)
  is_token[1, 35:] = 0
  masks = modeling_big_bird.BigBirdModel.create_masks_for_block_sparse_attn(
    torch.tensor(is_token), block
  )
  blocked, band, from_mask, to_mask = masks
  tokens = Tokens.row(length, segments=jnp.asarray(is_token, jnp.int32))
  same(
    'BigBird',
    'transformers BigBirdBlockSparseAttention',
    x,
    lambda x: theirs(x, band, from_mask, to_mask, blocked, blocked)[0],
    lambda x: applied(ours, x, tokens=tokens, pattern=pattern)[0],
    is_token > 0,
  )


def test_global_local_attention_equals_longformer_of_transformers(same):
  """A window of 4 shows 2 tokens on each side, in rows of a multiple of it; padding and marked global tokens."""
  from transformers.models.longformer import modeling_longformer

  length = 16
  config = transformers.LongformerConfig(
    hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[4]
  )
  theirs = modeling_longformer.LongformerSelfAttention(config, layer_id=0).eval()
  perturb(theirs)
  ours = GlobalLocalAttention(
    WIDTH, num_heads=HEADS, global_tokens=Marked('global'), rngs=nnx.Rngs(0)
  )
  for name, short in (('query', 'q'), ('key', 'k'), ('value', 'v')):
    copy_projection(getattr(ours, short), getattr(theirs, name))
    copy_projection(getattr(ours, f'{short}_global'), getattr(theirs, f'{name}_global'))
  remove_output_projection(ours)
  x, mask = inputs(length), np.zeros((2, length), np.float32)
  mask[0, [0, 7, 12]] = mask[1, 3] = 10000
  mask[1, 13:] = -10000
  settings = {
    'attention_mask': torch.tensor(mask),
    'is_index_masked': torch.tensor(mask < 0),
    'is_index_global_attn': torch.tensor(mask > 0),
    'is_global_attn': True,
  }
  segments, marks = jnp.asarray(mask >= 0, jnp.int32), {'global': jnp.asarray(mask > 0)}
  tokens = Tokens.row(length, segments=segments, marks=marks)
  pattern = Window(3) | Marked('global')
  same(
    'Longformer',
    'transformers LongformerSelfAttention',
    x,
    lambda x: theirs(x, **settings)[0],
    lambda x: applied(ours, x, tokens=tokens, pattern=pattern)[0],
    mask >= 0,
  )


def test_nystrom_attention_equals_nystromformer_of_transformers(same):
  """Without a mask, with which transformers 5 fails, and with a starting point of its iteration per head."""
  from transformers.models.nystromformer import modeling_nystromformer

  length = 20
  config = transformers.NystromformerConfig(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    num_landmarks=5,
    segment_means_seq_len=length,
    conv_kernel_size=7,
  )
  theirs = modeling_nystromformer.NystromformerSelfAttention(config).eval()
  perturb(theirs)
  # Their default divides by a maximum over the batch and all heads, so that rows depend on each other.
  theirs.init_option = 'exact'
  ours = NystromAttention(WIDTH, num_heads=HEADS, num_landmarks=5, conv_size=7, rngs=nnx.Rngs(0))
  for name, projection in (('query', ours.q), ('key', ours.k), ('value', ours.v)):
    copy_projection(projection, getattr(theirs, name))
  remove_output_projection(ours)
  ours.conv[...] = copied(theirs.conv.weight, HEADS, 7).T
  system = 'Nyströmformer', 'transformers NystromformerSelfAttention'
  same(*system, inputs(length), lambda x: theirs(x)[0], lambda x: applied(ours, x)[0])


def memory_compressed(pattern):
  """The mixer of the package with random weights, and ours with the same."""
  package = pytest.importorskip(
    'memory_compressed_attention', reason="the extra 'references' is not installed"
  )
  theirs = package.MemoryCompressedAttention(
    WIDTH, heads=HEADS, causal=pattern == Causal(), compression_factor=4
  )
  perturb(theirs)
  ours = MemoryCompressedAttention(
    WIDTH, num_heads=HEADS, ratio=4, use_bias=False, rngs=nnx.Rngs(0)
  )
  weights = (theirs.to_qkv.weight[i * WIDTH : (i + 1) * WIDTH] for i in range(3))
  for projection, weight in zip((ours.q, ours.k, ours.v), weights, strict=True):
    projection.kernel[...] = copied(weight.T, WIDTH, HEADS, HEAD_DIM)
  ours.q.kernel[...] *= (HEAD_DIM / WIDTH) ** 0.5
  conv = theirs.compress_fn.conv
  for ours_conv in (ours.k_conv, ours.v_conv):
    filters = copied(conv.weight, HEADS, HEAD_DIM, HEAD_DIM, 4)
    ours_conv.kernel[...] = filters.transpose(0, 3, 2, 1)
    ours_conv.bias[...] = copied(conv.bias, HEADS, HEAD_DIM)
  ours.k_null[...], ours.v_null[...] = (
    copied(null, HEADS, HEAD_DIM) for null in (theirs.null_k, theirs.null_v)
  )
  ours.out.kernel[...] = copied(theirs.to_out.weight.T, HEADS, HEAD_DIM, WIDTH)
  ours.out.bias[...] = copied(theirs.to_out.bias)
  return theirs, ours


@pytest.mark.parametrize('pattern', [Full(), Causal()], ids=str)
def test_memory_compressed_attention_equals_its_package(pattern, same):
  """Their scores are divided by the root of the width."""
  theirs, ours = memory_compressed(pattern)
  same(*MEMORY_COMPRESSED, inputs(20), theirs, lambda x: applied(ours, x, pattern=pattern)[0])


@pytest.mark.nightly
def test_memory_compressed_attention_of_other_lengths_equals_the_start_of_a_row_of_its_package(
  assert_close,
):
  """The package pads rows whose length the ratio does not divide at their start, so that its outputs for the same
  tokens depend on the length of the row; ours do not."""
  theirs, ours = memory_compressed(Causal())
  x = inputs(20)
  expected = theirs(torch.tensor(x))
  for length in range(1, 20):
    y, _ = applied(ours, jnp.asarray(x[:, :length]), pattern=Causal())
    assert_close(*MEMORY_COMPRESSED, y, expected[:, :length])
  shorter = theirs(torch.tensor(x[:, :18]))
  assert (shorter - expected[:, :18]).abs().max() > 0.1 * expected.abs().max()
