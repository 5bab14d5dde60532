"""The content and query streams of XLNet against transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tasks
from flax import nnx

from t2x.data import Batches, Bytes, TextFiles
from t2x.layers import (
  MLP,
  FunnelPositions,
  LayerNorm,
  MultiHeadAttention,
  PostNorm,
  TokenEmbedding,
  Tokens,
  XLPositions,
  gelu_exact,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Encoder, LanguageModel, TiedHead, TwoStreams
from t2x.tasks import PermutationLM

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, HIDDEN, VOCAB, LAYERS, LENGTH = 16, 2, 24, 30, 3, 11
SYSTEM = 'XLNet', 'transformers XLNetLMHeadModel'
part = functools.partial


def ours(has_types, vocab_size=VOCAB):
  sizes = {'num_heads': HEADS}
  types = part(FunnelPositions, separate_first=False, second='second', **sizes)
  block = part(
    Block,
    mixer=part(MultiHeadAttention, use_bias=False, out_bias=False, **sizes),
    feed_forward=part(MLP, hidden_dim=HIDDEN, activation=gelu_exact),
    wiring=part(PostNorm, norm=part(LayerNorm, epsilon=1e-12)),
    encoding=types if has_types else part(XLPositions, **sizes),
  )
  return LanguageModel(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=vocab_size),
    body=part(Encoder, stack=part(TwoStreams, num_layers=LAYERS, blocks=[block])),
    head=part(TiedHead, use_bias=True),
    rngs=nnx.Rngs(0),
  )


def theirs(vocab_size=VOCAB):
  config = transformers.XLNetConfig(
    vocab_size=vocab_size, d_model=WIDTH, n_layer=LAYERS, n_head=HEADS, d_inner=HIDDEN, dropout=0.0
  )
  torch.manual_seed(0)
  return transformers.XLNetLMHeadModel(config)


def arrays(tensors, has_types):
  """The values, or gradients, of their parameters by the names of ours."""
  get = dict(tensors)

  def norm(name, their):
    return {f'{name}.scale': get.pop(f'{their}.weight'), f'{name}.bias': get.pop(f'{their}.bias')}

  def linear(name, their):
    return {
      f'{name}.kernel': get.pop(f'{their}.weight').T,
      f'{name}.bias': get.pop(f'{their}.bias'),
    }

  def layer(their):
    attention = f'{their}.rel_attn'
    # Theirs are [d_model, heads, head_dim], the output projection too.
    q, k, v, o, r = (get.pop(f'{attention}.{name}') for name in 'qkvor')
    types = {
      'encoding.type_bias': get.pop(f'{attention}.r_s_bias'),
      'encoding.types': get.pop(f'{attention}.seg_embed'),
    }
    return {
      'encoding.r.kernel': r,
      'encoding.content_bias': get.pop(f'{attention}.r_w_bias'),
      'encoding.position_bias': get.pop(f'{attention}.r_r_bias'),
      **(types if has_types else {}),
      'mixer.q.kernel': q,
      'mixer.k.kernel': k,
      'mixer.v.kernel': v,
      'mixer.out.kernel': o.transpose(1, 2, 0),
      **norm('mixer_wiring.norm', f'{attention}.layer_norm'),
      **linear('feed_forward.up', f'{their}.ff.layer_1'),
      **linear('feed_forward.down', f'{their}.ff.layer_2'),
      **norm('feed_forward_wiring.norm', f'{their}.ff.layer_norm'),
    }

  layers = [layer(f'transformer.layer.{n}') for n in range(LAYERS)]
  found = {
    'embedding.table': get.pop('transformer.word_embedding.weight'),
    'body.stack.query': get.pop('transformer.mask_emb').reshape(-1),
    'head.bias': get.pop('lm_loss.bias'),
    **{f'body.stack.blocks.0.{n}': np.stack([one[n] for one in layers]) for n in layers[0]},
  }
  assert not get, list(get)
  return found


def filled(build, model, has_types=False):
  """Our model with the parameters of theirs."""
  values = arrays({name: p.detach().numpy() for name, p in model.named_parameters()}, has_types)
  shapes = jax.eval_shape(build)
  names = [name for name, _ in named_leaves(shapes)]
  assert sorted(names) == sorted(values)
  return jax.tree.unflatten(
    jax.tree.structure(shapes), [jnp.asarray(values[name]) for name in names]
  )


def compare_gradients(compared, slopes, model, has_types=False):
  gradients = arrays(
    {
      name: np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy()
      for name, p in model.named_parameters()
    },
    has_types,
  )
  largest = max(np.abs(g).max() for g in gradients.values())
  for name, slope in named_leaves(slopes):
    atol = 1e-5 * max(np.abs(gradients[name]).max(), 1e-2 * largest)
    compared(*SYSTEM, slope, gradients[name], atol=atol, of='gradients')


# The number of each token in the order of prediction: a permutation, and a context that all tokens see.
ORDERS = {
  'permutation': np.array([[4, 9, 0, 7, 1, 10, 3, 6, 2, 8, 5], [3, 1, 4, 0, 6, 2, 5, 7, 8, 9, 10]]),
  'context': np.array([[0, 0, 3, 0, 1, 0, 0, 4, 0, 2, 0], [0, 2, 0, 0, 1, 0, 3, 0, 0, 0, 0]]),
}
LENGTHS = np.array([LENGTH, 7])


@pytest.mark.parametrize(('name', 'has_types'), [('permutation', False), ('context', True)])
def test_predictions_and_gradients_equal_xlnet_of_transformers(
  name, has_types, compared, perturbed
):
  """With perm_mask and target_mapping, of rows with padding. The first tokens of the order see nothing: in transformers
  they average all tokens, so their predictions are not compared."""
  rng, order = np.random.default_rng(0), ORDERS[name]
  ids = rng.integers(1, VOCAB, (2, LENGTH))
  is_token = np.arange(LENGTH) < LENGTHS[:, None]
  is_target = is_token & (order > 0)
  weights = rng.normal(size=(2, LENGTH, VOCAB)) * is_target[..., None]
  second = np.broadcast_to(np.arange(LENGTH) >= 5, ids.shape)
  # Context tokens see each other.
  unseen = (order[:, None] >= order[:, :, None]) & ((order > 0)[:, None] | (name == 'permutation'))
  model = perturbed(theirs(), 0.1)
  out = model(
    input_ids=torch.tensor(ids),
    attention_mask=torch.tensor(is_token.astype(np.float32)),
    token_type_ids=torch.tensor(second * 1) if has_types else None,
    perm_mask=torch.tensor(unseen.astype(np.float32)),
    target_mapping=torch.eye(LENGTH).expand(2, -1, -1),
    use_mems=False,
  ).logits
  (out * torch.tensor(weights)).sum().backward()
  mine = filled(lambda: ours(has_types), model, has_types)
  tokens = Tokens.row(
    LENGTH,
    segments=jnp.asarray(is_token, jnp.int32),
    marks={'second': jnp.asarray(second)} if has_types else {},
    order=jnp.asarray(order),
  )

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def loss(model):
    logits = model(jnp.asarray(ids), tokens=tokens).x
    return (logits * weights).sum(), logits

  slopes, logits = loss(mine)
  wanted = out.detach().numpy()[is_target]
  compared(*SYSTEM, logits[is_target], wanted, atol=1e-5 * max(1.0, np.abs(wanted).max()))
  compare_gradients(compared, slopes, model, has_types)


@pytest.fixture
def task(tmp_path):
  tiny_tasks.write_data(tmp_path)
  path = str(tmp_path / 'text.txt')
  source = TextFiles(train=path, separator='\n')
  task = PermutationLM(source=source, tokenizer=Bytes(), length=24, rate=0.25)
  return task.bound(task.fit_tokenizer())


def test_loss_and_gradients_of_a_batch_of_the_task_equal_xlnet_of_transformers(
  task, compared, perturbed
):
  """The predicted tokens are those of target_mapping; perm_mask also hides the other documents of a row."""
  rows = list(task.rows('train'))
  batch = Batches(rows[-4:], task.transform(train=True), batch_size=4, seed=1)[0]
  order, segments = batch['order'], batch['segments']
  unseen = (order[:, None] >= order[:, :, None]) & (order > 0)[:, None]
  unseen |= segments[:, None] != segments[:, :, None]
  places, used = batch['masked_positions'], batch['weights'] > 0
  seen = (~unseen).sum(axis=2)
  assert all(np.take_along_axis(seen, places, axis=1)[used] > 0)
  assert not segments.all() and segments.max() > 1
  model = perturbed(theirs(vocab_size=264), 0.1)
  loss = model(
    input_ids=torch.tensor(batch['tokens'].astype(np.int64)),
    attention_mask=torch.tensor((segments != 0).astype(np.float32)),
    perm_mask=torch.tensor(unseen.astype(np.float32)),
    target_mapping=torch.nn.functional.one_hot(torch.tensor(places).long(), 24).float(),
    labels=torch.tensor(np.where(used, batch['labels'], -100).astype(np.int64)),
    use_mems=False,
  ).loss
  loss.backward()
  mine = filled(lambda: ours(False, vocab_size=264), model)

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def mean(model, batch):
    total, weight = task.sums(model, batch, None).metrics['loss']
    return total / weight, total / weight

  slopes, own = mean(mine, jax.tree.map(jnp.asarray, batch))
  compared(*SYSTEM, own, loss.item())
  compare_gradients(compared, slopes, model)
