"""A prefix language model against transformers' GPT-2 with a mask of its own for each pair."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.data import Bytes
from t2x.data.packing import add_positions
from t2x.data.tokenizers.base import SpecialIds
from t2x.layers import Causal, Prefix
from t2x.models.bodies import replace_parts
from t2x.tasks import CausalLM, PrefixLM

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

SIZES = [(5, 3), (2, 7), (1, 1), (4, 2)]
TASK = PrefixLM(tokenizer=Bytes(), source_length=8, target_length=8, length=24, label_smoothing=0.0)


def pairs():
  rng = np.random.default_rng(0)
  return [
    {
      'source': rng.integers(5, 50, source, np.int32),
      'target': rng.integers(5, 50, target, np.int32),
    }
    for source, target in SIZES
  ]


def packed():
  """The pairs in rows, as a batch."""
  rows = TASK.plan.pack(pairs(), SpecialIds(), collections.Counter())
  rows = [add_positions(row, ['tokens']) for row in rows]
  assert len(rows) < len(SIZES)
  return {name: jnp.stack([jnp.asarray(row[name], jnp.int32) for row in rows]) for name in rows[0]}


def torch_loss(model, bidirectional):
  """Sum of the losses of the targets, pair by pair, with masks from loops."""
  total = 0.0
  for pair in pairs():
    source, target = [*pair['source'], 1], [*pair['target'], 1]
    inputs = [3, *source, *target[:-1]]
    visible = np.zeros((len(inputs), len(inputs)))
    for q in range(len(inputs)):
      for k in range(len(inputs)):
        visible[q, k] = k <= q or (bidirectional and k <= len(source))
    mask = torch.tensor(np.where(visible, 0.0, -np.inf), dtype=torch.float32)[None, None]
    logits = model(input_ids=torch.tensor([inputs]), attention_mask=mask, use_cache=False).logits
    log_probs = logits[0, len(source) :].log_softmax(-1)
    total -= log_probs[range(len(target)), target].sum().item()
  return total


@pytest.fixture(scope='module')
def gpt2():
  config = transformers.GPT2Config(
    n_embd=24, n_layer=2, n_head=4, n_positions=32, vocab_size=50, bos_token_id=0, eos_token_id=0
  )
  config._attn_implementation = 'eager'
  torch.manual_seed(0)
  return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize('bidirectional', [True, False])
def test_loss_of_packed_pairs_equals_that_of_gpt2_with_masks(
  gpt2, perturbed, imported, bidirectional, compared
):
  theirs = perturbed(gpt2).eval()
  pattern = Causal() | Prefix() if bidirectional else Causal()
  model = imported(theirs)
  model = replace_parts(model, body=replace_parts(model.body, pattern=pattern))
  batch = packed()
  loss, count = jax.jit(lambda m: TASK.sums(m, batch, None).metrics['loss'])(model)
  assert count == sum(target + 1 for _, target in SIZES)
  system = 'prefix LM', 'transformers GPT2LMHeadModel'
  compared(*system, loss, torch_loss(theirs, bidirectional), rtol=1e-6, atol=0)


def test_a_task_without_prefixes_refuses_a_model_that_reads_them(gpt2, imported):
  model = imported(gpt2)
  model = replace_parts(model, body=replace_parts(model.body, pattern=Causal() | Prefix()))
  task = CausalLM(tokenizer=Bytes(), length=24)
  with pytest.raises(UserError, match=r"reads Tokens.marks\['prefix'\], which this batch does not"):
    jax.eval_shape(lambda m: task.sums(m, packed(), None).metrics, model)
