"""GPT-1's inputs for fine-tuning, with the auxiliary language modelling loss, against transformers' OpenAIGPT."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from loss_terms import gradient

from t2x.data import Bytes, TextFiles
from t2x.interop.families import FAMILIES
from t2x.interop.rules import Table
from t2x.layers.arrays import named_leaves
from t2x.models import Classifier, SequenceClassifier, last_token
from t2x.tasks import LanguageModelling, MultipleChoice, SequenceClassification, TextRegression

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

LENGTH, WEIGHT = 16, 0.3
SETTINGS = {
  'source': TextFiles(train='none'),
  'tokenizer': Bytes(),
  'length': LENGTH,
  'auxiliaries': {'lm': LanguageModelling(weight=WEIGHT)},
}
TASKS = {
  'choice': MultipleChoice(**SETTINGS, context=['question'], num_choices=3),
  'entailment': SequenceClassification(
    **SETTINGS, labels=['yes', 'no', 'maybe'], fields=['a', 'b']
  ),
  'similarity': TextRegression(
    **SETTINGS, score='score', fields=['a', 'b'], further_orders=[['b', 'a']]
  ),
}
SYSTEMS = {
  'choice': 'multiple choice of GPT-1',
  'entailment': 'GPT-1',
  'similarity': 'similarity in both orders of GPT-1',
}
PAIRS = [('a cat', 'one cat'), ('it rains', 'sun'), ('two', 'three four')]
EXAMPLES = {
  'choice': [
    {'question': 'capital?', 'choices': ['Oslo', 'Rome', 'a dog'], 'answer': 2},
    {'question': 'how many', 'choices': ['1', 'two', 'one more'], 'answer': 0},
  ],
  'entailment': [
    {'a': a, 'b': b, 'label': label}
    for (a, b), label in zip(PAIRS, ('yes', 'maybe', 'no'), strict=True)
  ],
  'similarity': [
    {'a': a, 'b': b, 'score': score} for (a, b), score in zip(PAIRS, (3.5, -1.0, 0.25), strict=True)
  ],
}


@pytest.fixture
def theirs(perturbed):
  """`theirs(num_classes)`: OpenAIGPTDoubleHeadsModel without dropout, whose second head has that many outputs."""

  def make(num_classes):
    sizes = {'n_embd': 16, 'n_layer': 2, 'n_head': 2, 'n_positions': LENGTH, 'vocab_size': 261}
    names = ('attn_pdrop', 'embd_pdrop', 'resid_pdrop', 'summary_first_dropout')
    config = transformers.OpenAIGPTConfig(**sizes, **dict.fromkeys(names, 0.0))
    torch.manual_seed(0)
    model = transformers.OpenAIGPTDoubleHeadsModel(config)
    model.multiple_choice_head.summary = torch.nn.Linear(16, num_classes)
    return perturbed(model, std=0.1)

  return make


@pytest.fixture
def ours(imported):
  """`ours(theirs)`: the same model in t2x, whose second head reads the last token of each row."""

  def make(theirs):
    language_model = transformers.OpenAIGPTLMHeadModel(theirs.config)
    language_model.transformer = theirs.transformer
    language_model.tie_weights()
    model, summary = imported(language_model), theirs.multiple_choice_head.summary
    classifier = functools.partial(Classifier, num_classes=summary.out_features)
    head = SequenceClassifier(16, 261, pool=last_token, classifier=classifier, rngs=nnx.Rngs(0))
    head.classifier.out.kernel[...] = jnp.asarray(summary.weight.detach().numpy().T)
    head.classifier.out.bias[...] = jnp.asarray(summary.bias.detach().numpy())
    model.head = head
    return model

  return make


def batch_of(task, examples):
  task = task.bound(Bytes().fit(list))
  rows = list(task.plan.rows(examples, task.fitted, collections.Counter()))
  return task, {name: np.stack([row[name] for row in rows]) for name in task.spec(1)}


def language_losses(model, ids, present):
  """The loss of transformers for each text: the mean over its tokens."""
  labels = ids.masked_fill(~present, -100)
  ends = present.sum(dim=1, keepdim=True) - 1
  return [
    model(
      ids[None, row : row + 1], mc_token_ids=ends[None, row], labels=labels[None, row : row + 1]
    ).loss
    for row in range(len(ids))
  ]


def expected_loss(name, model, batch):
  """The loss of the task, computed by the heads of transformers and by PyTorch."""
  ids, present = (
    torch.tensor(batch[column].reshape(-1, LENGTH)).long() for column in ('tokens', 'segments')
  )
  present = present > 0
  ends = present.sum(dim=1) - 1
  if name == 'choice':
    labels = torch.tensor(batch['label']).long()
    return model(
      ids.view(len(labels), -1, LENGTH), mc_token_ids=ends.view(len(labels), -1), mc_labels=labels
    ).mc_loss
  x = model.transformer(ids).last_hidden_state[torch.arange(len(ids)), ends]
  if name == 'entailment':
    labels = torch.tensor(batch['label']).long()
    return torch.nn.functional.cross_entropy(model.multiple_choice_head.summary(x), labels)
  values = model.multiple_choice_head.summary(x[0::2] + x[1::2])[:, 0]
  return torch.nn.functional.mse_loss(values, torch.tensor(batch['target']))


@pytest.mark.parametrize(
  ('name', 'num_classes'), [('choice', 1), ('entailment', 3), ('similarity', 1)]
)
def test_losses_equal_those_of_openai_gpt_with_gradients(name, num_classes, theirs, ours, compared):
  system = SYSTEMS[name], 'transformers OpenAIGPTDoubleHeadsModel'
  task, batch = batch_of(TASKS[name], EXAMPLES[name])
  model = theirs(num_classes)
  mine = ours(model)
  task.check_model(jax.eval_shape(lambda: mine))
  grads, metrics = gradient(task, mine, jax.tree.map(jnp.asarray, batch))
  ids, present = (
    torch.tensor(batch[column].reshape(-1, LENGTH)).long() for column in ('tokens', 'segments')
  )
  assert (present == 0).any()
  losses = torch.stack(language_losses(model, ids, present > 0))
  main = expected_loss(name, model, batch)
  (main + WEIGHT * losses.mean()).backward()
  for metric, wanted in (('loss', main), ('lm_loss', losses.mean())):
    total, weight = metrics[metric]
    compared(*system, total / weight, wanted.item(), rtol=1e-5, atol=0)
  leaves = {path: np.asarray(leaf) for path, leaf in named_leaves(grads)}
  second = {part: leaves.pop(f'head.classifier.out.{part}') for part in ('kernel', 'bias')}
  table = Table(FAMILIES['openai-gpt'].rules, {path: leaf.shape for path, leaf in leaves.items()})
  wanted = {path: p.grad.numpy() for path, p in model.named_parameters()}
  largest = max(np.abs(array).max() for array in wanted.values())
  got = {
    path: tensor.layout.join([leaves[parameter][index] for parameter, index in tensor.parts])
    for path, tensor in table.tensors.items()
  }
  got['multiple_choice_head.summary.weight'] = second['kernel'].T
  got['multiple_choice_head.summary.bias'] = second['bias']
  assert got.keys() == wanted.keys() - {'lm_head.weight'}
  for path, array in got.items():
    # A bias of keys has no gradient: what is compared are rounding errors.
    atol = max(1e-5 * np.abs(wanted[path]).max(), 1e-7 * largest)
    compared(*system, array, wanted[path], atol=atol, of='gradients')
