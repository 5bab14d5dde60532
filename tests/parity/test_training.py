"""Fifty steps of AdamW from the same weights on the same batches: losses of t2x against torch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.data import Bytes, TextFiles
from t2x.tasks import CausalLM, Translation
from t2x.train import AdamW, Constant, Trainer
from t2x.train.groups import Groups
from t2x.train.optimizers import build_optimizer
from t2x.train.params import Blueprint
from t2x.train.step import init_state, make_train_step

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

# Relative error at every step.
TOLERANCE = 1e-3
NUM_STEPS, BATCH, LENGTH = 50, 8, 12
VOCAB, BOS, PAD = 40, 3, 0
PEAK, DECAY = 3e-3, 0.1


def side(rng, first, pace):
  """Returns ids, segments and positions of rows that count up from `first` by `pace`."""
  lengths = rng.integers(3, LENGTH + 1, BATCH)
  places = np.broadcast_to(np.arange(LENGTH), (BATCH, LENGTH))
  segments = places < lengths[:, None]
  ids = 5 + (first[:, None] + pace[:, None] * places) % (VOCAB - 5)
  return np.where(segments, ids, PAD), segments.astype(np.int32), places * segments


def batches():
  """Yields batches of pairs with the same `first` and `pace`."""
  rng = np.random.default_rng(0)
  for _ in range(NUM_STEPS):
    first, pace = rng.integers(0, VOCAB, BATCH), rng.integers(1, 4, BATCH)
    batch = {}
    for name in ('source', 'target'):
      batch[name], batch[f'{name}_segments'], batch[f'{name}_positions'] = side(rng, first, pace)
    yield batch


def read(batch):
  """Returns the decoder inputs: the target shifted by one."""
  return np.pad(batch['target'], ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]


def torch_losses(model, logits):
  """Yields the losses of torch's AdamW, with weight decay except for norms and biases."""
  decayed = [one for name, one in model.named_parameters() if is_decayed(name, one)]
  others = [one for name, one in model.named_parameters() if not is_decayed(name, one)]
  optimizer = torch.optim.AdamW(
    [{'params': decayed}, {'params': others, 'weight_decay': 0.0}], lr=PEAK, weight_decay=DECAY
  )
  model.train()
  for batch in batches():
    valid = torch.tensor(batch['target_segments'] != 0)
    labels = torch.tensor(batch['target'])[valid]
    loss = torch.nn.functional.cross_entropy(logits(model, batch)[valid], labels)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    yield loss.item()


def is_decayed(name, parameter):
  """Returns whether weight decay applies to a parameter."""
  return parameter.ndim > 1 and not name.endswith('bias')


def our_losses(model, task, fields):
  """Yields the losses of t2x's train step; `fields` maps names of the task to names of the batch."""
  trainer = Trainer(
    num_steps=NUM_STEPS,
    batch_size=BATCH,
    optimizer=AdamW(weight_decay=DECAY),
    schedule=Constant(peak=PEAK),
    clip_norm=1.0,
  )
  blueprint = Blueprint(jax.eval_shape(lambda: model))
  params, groups = blueprint.params(model), Groups((), blueprint.infos)
  optimizer = build_optimizer(
    trainer.optimizer,
    trainer.schedule,
    clip_norm=trainer.clip_norm,
    num_steps=trainer.num_steps,
    infos=groups.trained,
  )
  state = init_state(params, trainer, optimizer, jax.random.key(0), groups)
  step = jax.jit(make_train_step(task, trainer, optimizer, blueprint, groups))
  for batch in batches():
    state, out = step(
      state, {}, {name: jnp.asarray(batch[key], jnp.int32) for name, key in fields.items()}
    )
    total, weight = out.sums['loss']
    yield float(total / weight)


@pytest.fixture
def follow(table, imported):
  """`follow(family, model, logits, task, fields)`: trains both models from the weights of `model`."""

  def check(family, model, logits, task, fields):
    mine = np.array(list(our_losses(imported(model), task, fields)))
    theirs = np.array(list(torch_losses(model, logits)))
    assert theirs[-10:].mean() < 0.7 * theirs[0], 'nothing is learnt'
    found = float(np.abs(mine / theirs - 1).max())
    table[family]['training'] = f'{found:.0e}'
    assert found < TOLERANCE, found

  return check


task = functools.partial(dict, source=TextFiles(train='none'), tokenizer=Bytes())


def test_gpt2_learns_as_in_torch(follow, perturbed):
  torch.manual_seed(0)
  config = transformers.GPT2Config(
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=LENGTH,
    vocab_size=VOCAB,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=BOS,
    eos_token_id=1,
  )

  def logits(model, batch):
    mask = torch.tensor(batch['target_segments'])
    return model(input_ids=torch.tensor(read(batch)), attention_mask=mask, use_cache=False).logits

  follow(
    'GPT-2',
    perturbed(transformers.GPT2LMHeadModel(config), 0.1),
    logits,
    CausalLM(**task(length=LENGTH)),
    {'tokens': 'target', 'segments': 'target_segments', 'positions': 'target_positions'},
  )


@pytest.mark.nightly
def test_bart_learns_as_in_torch(follow, perturbed):
  torch.manual_seed(0)
  config = transformers.BartConfig(
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=16,
    vocab_size=VOCAB,
    dropout=0.0,
    pad_token_id=PAD,
  )
  model = transformers.BartForConditionalGeneration(config)
  # t2x trains this bias, in transformers it is a buffer.
  bias = model.final_logits_bias
  del model.final_logits_bias
  model.final_logits_bias = torch.nn.Parameter(bias)

  def logits(model, batch):
    out = model(
      input_ids=torch.tensor(batch['source']),
      attention_mask=torch.tensor(batch['source_segments']),
      decoder_input_ids=torch.tensor(read(batch)),
      decoder_attention_mask=torch.tensor(batch['target_segments']),
      use_cache=False,
    )
    return out.logits

  names = ('source', 'target')
  fields = [name + end for name in names for end in ('', '_segments', '_positions')]
  follow(
    'BART',
    perturbed(model, 0.1),
    logits,
    Translation(
      **task(source_length=LENGTH, target_length=LENGTH, label_smoothing=0.0),
    ),
    dict(zip(fields, fields, strict=True)),
  )
