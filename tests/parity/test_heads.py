"""Importance of heads against gradients of PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.layers import Tokens
from t2x.models.losses import classification_sums
from t2x.prune.heads import find_heads, importance
from t2x.tasks.base import TaskOutput
from t2x.train.params import Blueprint

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

ROWS, LENGTH, HEADS, DIM, LAYERS = 5, 9, 4, 6, 3
# Both compute in float32.
TOLERANCE = 1e-4


def theirs(model, ids, labels):
  """Mean over rows of |dL / dxi|, divided by its norm in each layer, with xi multiplied into the heads' outputs."""
  total = np.zeros((LAYERS, HEADS))
  for row, targets in zip(ids, labels, strict=True):
    xi = [torch.ones(HEADS, requires_grad=True) for _ in range(LAYERS)]
    hooks = [
      layer.attention.output.dense.register_forward_pre_hook(
        lambda _, args, x=x: (args[0] * x.repeat_interleave(DIM),)
      )
      for layer, x in zip(model.bert.encoder.layer, xi, strict=True)
    ]
    logits = model(torch.tensor(row[None])).logits
    loss = torch.nn.functional.cross_entropy(logits[0], torch.tensor(targets))
    total += np.stack([g.abs().numpy() for g in torch.autograd.grad(loss, xi)])
    for hook in hooks:
      hook.remove()
  mean = total / len(ids)
  return mean / np.sqrt((mean**2).sum(axis=1, keepdims=True))


def test_importance_equals_that_of_pytorch(perturbed, imported, compared):
  torch.manual_seed(0)
  config = transformers.BertConfig(
    vocab_size=50,
    hidden_size=HEADS * DIM,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=40,
    max_position_embeddings=16,
    attn_implementation='eager',
  )
  model = perturbed(transformers.BertForMaskedLM(config))
  rng = np.random.default_rng(0)
  ids, labels = rng.integers(3, 50, (2, ROWS, LENGTH))

  def sums(model, batch, key):
    out = model.hidden(batch['ids'], tokens=Tokens.row(LENGTH))
    logits = model.logits(out.x)
    return TaskOutput(classification_sums(logits, batch['labels'], batch['weights']))

  mine = imported(model)
  blueprint = Blueprint(jax.eval_shape(lambda: mine))
  heads = find_heads(blueprint.infos)
  # The last row of the second batch is padding and does not count.
  padded = [np.concatenate([a, np.zeros((1, LENGTH), a.dtype)]) for a in (ids, labels)]
  weights = np.ones((ROWS + 1, LENGTH), np.float32)
  weights[-1] = 0
  arrays = {'ids': padded[0], 'labels': padded[1], 'weights': weights}
  batches = [{n: jnp.asarray(a[i : i + 3]) for n, a in arrays.items()} for i in (0, 3)]
  scores, count = importance(sums, blueprint, blueprint.params(mine), batches, heads)
  assert count == ROWS
  found, wanted = scores['body.stack.blocks.0.mixer'], theirs(model, ids, labels)
  compared('head pruning', 'torch autograd', found, wanted, rtol=TOLERANCE, atol=0)
