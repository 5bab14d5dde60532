"""DistilBERT's loss on a batch of masked tokens against the released training code's formula in float64."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_terms import gradient

from t2x.data import BestFitDocuments, Bytes, TextFiles
from t2x.interop.families import FAMILIES
from t2x.interop.rules import Table
from t2x.layers.arrays import named_leaves
from t2x.tasks import Distillation, HiddenCosine, MaskedLM

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

SYSTEM = ('DistilBERT', "transformers DistilBertForMaskedLM, the training code's loss in float64")
CE, MLM, COSINE, TEMPERATURE = 5.0, 2.0, 1.0, 2.0
TASK = MaskedLM(
  source=TextFiles(train='none'),
  tokenizer=Bytes(),
  length=20,
  rate=0.3,
  packing=BestFitDocuments,
  distillation=Distillation(
    alpha=CE / (CE + MLM),
    temperature=TEMPERATURE,
    hidden={'cosine': HiddenCosine(weight=COSINE / (CE + MLM))},
  ),
).bound(Bytes().fit(list))


def model(seed, num_layers):
  sizes = {'dim': 12, 'hidden_dim': 20, 'n_heads': 2, 'vocab_size': 261}
  rates = {'dropout': 0.0, 'attention_dropout': 0.0}
  config = transformers.DistilBertConfig(
    n_layers=num_layers, max_position_embeddings=20, **sizes, **rates
  )
  torch.manual_seed(seed)
  made = transformers.DistilBertForMaskedLM(config).eval()
  with torch.no_grad():
    for parameter in made.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  return made


def masked_batch():
  """Rows of one document each, some with padding, masked by the task's transform."""
  texts = [{'text': 'abcdefghijklmnopqrstuvwxyz'[i:]} for i in (8, 11, 13)]
  rows = list(TASK.plan.rows(texts, TASK.fitted, collections.Counter()))
  transform, rng = TASK.transform(train=True), np.random.default_rng(0)
  masked = [transform(row | {'positions': np.arange(20)}, rng) for row in rows]
  return {name: np.stack([row[name] for row in masked]) for name in TASK.spec(1)}


def published_loss(batch, student, teacher):
  """`Distiller.step` with `restrict_ce_to_mask`, for three rows."""
  present, labels = torch.tensor(batch['segments'] > 0), np.full(batch['tokens'].shape, -100)
  for row, (places, ids, weights) in enumerate(
    zip(batch['masked_positions'], batch['labels'], batch['weights'], strict=True)
  ):
    labels[row, places[weights > 0]] = ids[weights > 0]
  inputs = {'input_ids': torch.tensor(batch['tokens']), 'attention_mask': present.int()}
  ours = student(**inputs, output_hidden_states=True)
  with torch.no_grad():
    theirs = teacher(**inputs, output_hidden_states=True)
  labels = torch.tensor(labels)
  soft = torch.nn.KLDivLoss(reduction='batchmean')(
    torch.log_softmax(ours.logits[labels >= 0] / TEMPERATURE, dim=-1),
    torch.softmax(theirs.logits[labels >= 0] / TEMPERATURE, dim=-1),
  )
  hard = torch.nn.CrossEntropyLoss(ignore_index=-100)(ours.logits.flatten(0, 1), labels.flatten())
  x, y = (out.hidden_states[-1][present] for out in (ours, theirs))
  cosine = torch.nn.CosineEmbeddingLoss(reduction='mean')(x, y, torch.ones(len(x)))
  return CE * TEMPERATURE**2 * soft, MLM * hard, COSINE * cosine


def test_the_loss_equals_that_of_the_published_code_with_gradients(compared, imported):
  student, teacher = model(0, 2), model(1, 4)
  mine, taught = imported(student), imported(teacher)
  batch = masked_batch()
  assert (batch['segments'] == 0).any() and (batch['weights'] == 0).any()
  TASK.check_teacher(mine, taught)
  grads, metrics = gradient(TASK, mine, jax.tree.map(jnp.asarray, batch), teacher=taught)
  terms = published_loss(batch, student.double(), teacher.double())
  sum(terms).backward()
  names = ('distillation', 'loss', 'distillation_cosine')
  factors = (CE + MLM, MLM, CE + MLM)
  for name, factor, term in zip(names, factors, terms, strict=True):
    total, weight = metrics[name]
    compared(*SYSTEM, factor * total / weight, term.item(), rtol=1e-5, atol=0)
  leaves = {name: (CE + MLM) * np.asarray(leaf) for name, leaf in named_leaves(grads)}
  table = Table(FAMILIES['distilbert'].rules, {name: leaf.shape for name, leaf in leaves.items()})
  wanted = {name: p.grad.numpy() for name, p in student.named_parameters()}
  largest = max(np.abs(array).max() for array in wanted.values())
  for name, tensor in table.tensors.items():
    parts = [leaves[parameter][index] for parameter, index in tensor.parts]
    # A bias of keys has no gradient: what is compared are rounding errors.
    atol = max(1e-5 * np.abs(wanted[name]).max(), 1e-7 * largest)
    got = tensor.layout.join(parts)
    compared(*SYSTEM, got, wanted[name], atol=atol, of='gradients')
