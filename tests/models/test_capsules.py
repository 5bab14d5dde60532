"""Routing by agreement against the paper's procedure in float64, and its loss of margins, with PyTorch's gradients."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import double, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Input
from t2x.models import CapsuleLengths, CapsulePool, ModelSpec
from t2x.models.capsules import squash
from t2x.samples import Digits
from t2x.tasks import ImageClassification, MarginLoss
from t2x.tasks.classification import class_sums

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
WIDTH, CLASSES, SIZE = 12, 3, 4
X = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype(np.float32)
SEGMENTS = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]])
LABELS = np.array([2, 0])
SYSTEM = 'capsules with routing by agreement', 'PyTorch, float64'


def squashed(s):
  """Equation 1."""
  length = torch.linalg.vector_norm(s)
  return length**2 / (1 + length**2) * s / length


def routed(x, kernel):
  """Procedure 1 for a row of tokens, with one loop for each index."""
  inputs = [(i, squashed(c)) for token in x for i, c in enumerate(token.reshape(-1, SIZE))]
  votes = [[u @ kernel[i][:, j * SIZE : (j + 1) * SIZE] for j in range(CLASSES)] for i, u in inputs]
  b = [[torch.zeros((), dtype=torch.float64)] * CLASSES for _ in votes]
  for _ in range(3):
    c = [torch.softmax(torch.stack(row), dim=0) for row in b]
    v = [
      squashed(sum(share[j] * vote[j] for share, vote in zip(c, votes, strict=True)))
      for j in range(CLASSES)
    ]
    b = [[b[i][j] + vote[j] @ v[j] for j in range(CLASSES)] for i, vote in enumerate(votes)]
  return v


def margin(outputs, label):
  """Equation 4."""
  loss = 0
  for j, v in enumerate(outputs):
    length = torch.linalg.vector_norm(v)
    if j == label:
      loss = loss + (0.9 - length).clamp(min=0) ** 2
    else:
      loss = loss + 0.5 * (length - 0.1).clamp(min=0) ** 2
  return loss


def test_outputs_loss_and_gradients_equal_the_procedure(compared):
  """The second row has padding, which the procedure does not get."""
  pool = moved(CapsulePool(WIDTH, num_capsules=CLASSES, capsule_dim=SIZE, rngs=nnx.Rngs(0)))
  head = CapsuleLengths(WIDTH, num_classes=CLASSES, rngs=nnx.Rngs(0))

  @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
  def slopes(pool, x):
    y = pool(x, jnp.asarray(SEGMENTS))
    return MarginLoss()(head(y), jnp.asarray(LABELS)).sum(), y

  (of_pool, of_x), y = jax.jit(slopes)(pool, jnp.asarray(X))
  x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
  kernel = torch.tensor(double(pool.kernel), requires_grad=True)
  outputs = [routed(row[segments > 0], kernel) for row, segments in zip(x, SEGMENTS, strict=True)]
  sum(margin(v, label) for v, label in zip(outputs, LABELS, strict=True)).backward()
  expected = torch.stack([torch.cat(v) for v in outputs]).detach().numpy()
  compared(*SYSTEM, y, expected)
  compared(*SYSTEM, of_pool.kernel[...], kernel.grad.numpy(), of='gradients')
  compared(*SYSTEM, of_x, x.grad.numpy(), of='gradients')
  assert np.abs(kernel.grad.numpy()).max() > 0.01


def test_zero_vectors_have_finite_gradients():
  assert jnp.isfinite(jax.grad(lambda s: squash(s).sum())(jnp.zeros((2, 3)))).all()
  head = CapsuleLengths(4, num_classes=2, rngs=nnx.Rngs(0))
  assert jnp.isfinite(jax.grad(lambda x: head(x).sum())(jnp.zeros((1, 4)))).all()


def test_sizes_that_do_not_divide_the_width_are_refused():
  for settings in ({'num_capsules': 5}, {'num_capsules': 3, 'capsule_dim': 5}):
    with pytest.raises(UserError, match=r'CapsulePool.* = 5 does not divide d_model = 12'):
      CapsulePool(12, **settings, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=r'CapsuleLengths.num_classes = 5 does not divide'):
    CapsuleLengths(12, num_classes=5, rngs=nnx.Rngs(0))


def test_a_task_trains_with_its_loss_in_place_of_the_cross_entropy():
  settings = {'source': Digits(), 'image_shape': (2, 2, 1), 'num_classes': 3}
  task = ImageClassification(**settings, loss=MarginLoss(upper=0.8, lower=0.2, others=0.25))
  scores, labels = jnp.asarray([[0.5, 0.6, 0.1], [0.9, 0.1, 0.2]]), jnp.asarray([0, 0])
  sums = class_sums(task, scores, labels, jnp.asarray([2.0, 1.0]), train=True)
  np.testing.assert_allclose(sums['loss'], [2 * (0.3**2 + 0.25 * 0.4**2), 3.0], rtol=1e-6)
  np.testing.assert_allclose(sums['accuracy'], [1.0, 3.0])
  refused = ImageClassification(**settings, loss=MarginLoss(), label_smoothing=0.1)
  inputs, outputs = {'image': Input('image', shape=(2, 2, 1))}, frozenset({'class logits'})
  spec = ModelSpec(inputs=inputs, outputs=outputs, patterns=(), num_classes=3)
  model = types.SimpleNamespace(spec=spec)
  with pytest.raises(UserError, match=r'label_smoothing is of the cross-entropy'):
    refused.check_model(model)
