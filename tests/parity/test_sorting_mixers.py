"""Mixers that sort or cluster the tokens of a row, against PyTorch code of other projects."""

import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx
from torch_heads import joined, projected, torch

from t2x.layers import Call, Causal, Full, LSHAttention, RoutingAttention, SinkhornAttention, Tokens
from t2x.layers.mixers.sinkhorn_attention import sinkhorn

WIDTH, HEADS, LENGTH = 24, 3, 16
HEAD_DIM = WIDTH // HEADS
LSH = 'Reformer', 'transformers LSHSelfAttention'
SINKHORN = 'Sinkhorn Transformer', 'sinkhorn-transformer SinkhornAttention'
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)


def reformer(chunk, num_buckets, rounds, is_causal):
  """LSH attention of transformers, with the rotations that its seed gives."""
  from transformers import ReformerConfig
  from transformers.models.reformer.modeling_reformer import LSHSelfAttention

  config = ReformerConfig(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    attention_head_size=HEAD_DIM,
    lsh_attn_chunk_length=chunk,
    lsh_num_chunks_before=1,
    lsh_num_chunks_after=0 if is_causal else 1,
    num_buckets=num_buckets,
    num_hashes=rounds,
    hash_seed=3,
    is_decoder=is_causal,
  )
  torch.manual_seed(0)
  # In float64: the logarithm of 3 times exp(-1e5), their weight of a token without keys, is off by 0.003 in
  # float32.
  theirs = LSHSelfAttention(config).eval().double()
  torch.manual_seed(3)
  shape = HEADS, HEAD_DIM, rounds, num_buckets // 2
  return theirs, torch.randn(shape, dtype=torch.float64).numpy()


def copied_lsh(theirs, rotations, monkeypatch, **settings):
  """Our mixer with the weights and rotations of theirs; the output projection is the identity."""
  ours = LSHAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0), **settings)
  split = WIDTH, HEADS, HEAD_DIM
  ours.q.kernel[...] = jnp.asarray(theirs.query_key.weight.detach().numpy().T.reshape(split))
  ours.v.kernel[...] = jnp.asarray(theirs.value.weight.detach().numpy().T.reshape(split))
  ours.out.kernel[...] = jnp.eye(WIDTH).reshape(HEADS, HEAD_DIM, WIDTH)
  monkeypatch.setattr(
    LSHAttention, 'rotations', lambda self, call: jnp.asarray(rotations, jnp.float32)
  )
  return ours


def limit_to_near_places_of_a_bucket(theirs, buckets, chunk, monkeypatch):
  """Adds to their mask the conditions that they omit: the same bucket, and at most `chunk` places apart."""
  masks = type(theirs)._compute_attn_mask
  ordered = buckets.flatten(2).sort(dim=-1).values
  places = torch.arange(ordered.shape[-1]).expand(ordered.shape)

  def mask(self, q, k, *inputs):
    def pairs(a):
      a = a.reshape(q.shape)
      neighbours = self.num_chunks_before, self.num_chunks_after
      return a[..., None], self._look_adjacent(a, *neighbours)[..., None, :]

    (q_bucket, k_bucket), (q_place, k_place) = pairs(ordered), pairs(places)
    near = (q_bucket == k_bucket) & ((q_place - k_place).abs() <= chunk)
    other = masks(self, q, k, *inputs)
    return near if other is None else near & other

  monkeypatch.setattr(type(theirs), '_compute_attn_mask', mask)


@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
@pytest.mark.parametrize('padded', [False, True])
def test_lsh_attention_equals_transformers_with_the_condition_of_the_same_bucket(
  pattern, padded, monkeypatch, same_gradient
):
  chunk, buckets, rounds = 4, 4, 3
  theirs, rotations = reformer(chunk, buckets, rounds, pattern == Causal())
  settings = {'chunk': chunk, 'num_buckets': buckets, 'rounds': rounds}
  ours = copied_lsh(theirs, rotations, monkeypatch, **settings)
  present = np.arange(LENGTH)[None] < np.asarray([[LENGTH - 5], [LENGTH]])
  segments = jnp.asarray(present, jnp.int32) if padded else None
  mask = torch.tensor(present) if padded else None
  with torch.no_grad():
    x = torch.tensor(X, dtype=torch.float64)
    found = theirs(x, mask).buckets
  limit_to_near_places_of_a_bucket(theirs, found, chunk, monkeypatch)
  tokens = Tokens.row(LENGTH, segments=segments)
  same_gradient(
    *LSH,
    X,
    lambda x: theirs(x.double(), mask).hidden_states,
    lambda x: applied(ours, x, pattern=pattern, tokens=tokens)[0],
    present if padded else True,
    rtol=1e-5,
    atol=2e-6,
  )


@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
@pytest.mark.parametrize('chunk', [LENGTH // 2, LENGTH])
def test_lsh_attention_equals_unchanged_transformers_if_all_tokens_have_one_hash(
  chunk, pattern, monkeypatch, compared
):
  """With two chunks in a row theirs sees all tokens; with one it uses plain attention."""
  theirs, rotations = reformer(chunk, 2, 1, pattern == Causal())
  x = torch.tensor(X + 4 * X[:1, :1], dtype=torch.float64)
  with torch.no_grad():
    q = theirs.query_key(x).reshape(2, LENGTH, HEADS, HEAD_DIM)
    rotations = q.mean((0, 1))[..., None, None].numpy()
    assert (np.einsum('blhd,hdrn->blhrn', q.numpy(), rotations) > 0).all()
    monkeypatch.setattr(theirs, '_hash_vectors', lambda q, *_: torch.zeros(q.shape[:3], dtype=int))
    if pattern == Full():
      theirs.num_chunks_after = 0  # Their last chunk is also before the first.
    expected = theirs(x).hidden_states.numpy()
  ours = copied_lsh(theirs, rotations, monkeypatch, chunk=LENGTH, num_buckets=2, rounds=1)
  y, _ = applied(ours, jnp.asarray(x, jnp.float32), pattern=pattern)
  compared(*LSH, y, expected, rtol=1e-5, atol=2e-6)


def sinkhorn_package():
  return pytest.importorskip(
    'sinkhorn_transformer.sinkhorn_transformer', reason="the extra 'references' is not installed"
  )


def test_sinkhorn_normalisation_equals_the_package_sinkhorn_transformer(compared):
  scores = np.random.default_rng(1).normal(size=(2, 3, 6, 6)).astype(np.float32)
  theirs = sinkhorn_package().sinkhorn_sorting_operator(torch.tensor(scores[:, 0]), 5)
  ours = sinkhorn(jnp.asarray(scores), jnp.ones((2, 1, 6, 6), bool), 5, is_causal=False)
  compared(*SINKHORN, ours[:, 0], theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_sinkhorn_attention_equals_the_package_sinkhorn_transformer(monkeypatch, same_gradient):
  """Without its noise and its relu, and with equal keys and values, as it takes the matched values from the
  keys."""
  package = sinkhorn_package()
  monkeypatch.setattr(package.F, 'relu', lambda x: x)
  monkeypatch.setattr(
    package, 'gumbel_sinkhorn', lambda r, n, t: package.sinkhorn_sorting_operator(r / t, n)
  )
  theirs = package.SinkhornAttention(
    4, WIDTH, HEAD_DIM, HEADS, LENGTH, temperature=0.3, non_permutative=False, sinkhorn_iter=3
  )
  ours = SinkhornAttention(
    WIDTH, num_heads=HEADS, block=4, iterations=3, temperature=0.3, rngs=nnx.Rngs(0)
  )
  ours.v.kernel[...] = ours.k.kernel[...]
  same_gradient(
    *SINKHORN,
    2 * X,
    lambda x: joined(ours, theirs(*projected(ours, x))),
    lambda x: applied(ours, x)[0],
    rtol=1e-5,
    atol=1e-5,
  )


def test_routing_attention_equals_the_package_routing_transformer(compared, same_gradient):
  package = pytest.importorskip(
    'routing_transformer.routing_transformer', reason="the extra 'references' is not installed"
  )
  torch.manual_seed(0)
  theirs = package.KmeansAttention(3, 6, HEADS, HEAD_DIM, commitment=0.5).eval()
  ours = RoutingAttention(
    WIDTH, num_heads=HEADS, num_clusters=3, window=6, commitment=0.5, rngs=nnx.Rngs(0)
  )
  means = torch.nn.functional.normalize(theirs.kmeans.means, dim=-1)
  theirs.kmeans.means.copy_(means)
  theirs.kmeans.initted.fill_(True)
  ours.centroids[...] = jnp.asarray(means.numpy())
  # One row, because their loss is a mean over rows.
  x = X[:1] * 3
  system = 'Routing Transformer', 'routing-transformer KmeansAttention'
  # They add 1e-5 to the number of clusters of a token.
  same_gradient(
    *system,
    x,
    lambda x: joined(ours, theirs(*projected(ours, x))[0]),
    lambda x: ours(x, Call(Tokens.row(LENGTH))).x,
    slope=2e-5,
    rtol=2e-5,
    atol=2e-5,
  )
  _, loss = theirs(*projected(ours, torch.tensor(x)))
  result = ours(jnp.asarray(x), Call(Tokens.row(LENGTH)))
  compared(*system, result.aux.losses['commitment'][0], loss.item(), rtol=1e-5, atol=0)
