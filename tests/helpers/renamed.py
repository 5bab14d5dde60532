"""Parameters of a reference by the names of t2x, for models that are compared in the gradients of the reference's own
parameters."""

import jax
import jax.numpy as jnp
import optax

from t2x.layers.arrays import named_leaves


class Renamed:
  """Arrays of the reference by the names of t2x; each is taken once.

  Args:
    arrays: arrays of the reference by name.
    statistics: its arrays that are not parameters, by name.
  """

  def __init__(self, arrays, statistics=None):
    self.left, self.statistics = dict(arrays), statistics or {}
    self.found = {}

  def take(self, name, theirs, order=None, shape=None):
    array = self.left.pop(theirs)
    array = array if order is None else array.transpose(order)
    self.found[name] = array if shape is None else array.reshape(shape)

  def linear(self, name, theirs, inputs=None, outputs=None, bias=True):
    kernel = self.left.pop(f'{theirs}.weight').T
    shape = *(inputs or kernel.shape[:1]), *(outputs or kernel.shape[1:])
    self.found[f'{name}.kernel'] = kernel.reshape(shape)
    if bias:
      self.take(f'{name}.bias', f'{theirs}.bias', shape=outputs)

  def norm(self, name, theirs):
    self.take(f'{name}.scale', f'{theirs}.weight')
    self.take(f'{name}.bias', f'{theirs}.bias')

  def convolution(self, name, theirs, bias=True):
    self.take(f'{name}.kernel', f'{theirs}.weight', (2, 3, 1, 0))
    if bias:
      self.take(f'{name}.bias', f'{theirs}.bias')

  def stacked(self, name, rename, blocks):
    """The layers of a stack by `rename(own, name, block)`, one after another along the first axis."""
    layers = []
    for block in blocks:
      own = Renamed(self.left, self.statistics)
      rename(own, name, block)
      self.left = own.left
      layers.append(own.found)
    self.found |= {key: jnp.stack([one[key] for one in layers]) for key in layers[0]}


def model_of(shapes, rename, arrays, statistics=None):
  """Returns our model with the parameters of the reference; arguments are those of `logits_and_gradients`."""
  own = Renamed(arrays, statistics)
  rename(own)
  assert not own.left, list(own.left)
  wanted = dict(named_leaves(shapes))
  assert sorted(wanted) == sorted(own.found)
  assert {n: a.shape for n, a in own.found.items()} == {n: a.shape for n, a in wanted.items()}
  return jax.tree.unflatten(jax.tree.structure(shapes), [own.found[name] for name in wanted])


def normalised(own, name, convolution, norm):
  """A convolution without bias, and batch normalisation."""
  own.convolution(f'{name}.convolution', convolution, bias=False)
  own.norm(f'{name}.norm', norm)
  for ours, theirs in (('mean', 'running_mean'), ('variance', 'running_var')):
    own.found[f'{name}.norm.{ours}'] = jnp.asarray(own.statistics[f'{norm}.{theirs}'], jnp.float32)


def in_transformers_resnet(own, name, theirs):
  """Convolutions of a branch of transformers."""
  parts = ('first', 'second', 'third')
  for i, part in enumerate(parts):
    if f'{theirs}.{i}.convolution.weight' in own.left:
      normalised(own, f'{name}.{part}', f'{theirs}.{i}.convolution', f'{theirs}.{i}.normalization')


def logits_and_gradients(
  shapes, rename, arrays, images, labels, statistics=None, apply=lambda model, x: model(x).x
):
  """Returns our logits of images, and the gradients of the cross-entropy in the parameters of the reference.

  Args:
    shapes: abstract model of t2x.
    rename: fills a `Renamed`, which must take all arrays and find all parameters.
    arrays: parameters of the reference by name.
    images, labels: the batch.
    statistics: arrays of the reference that are not parameters, by name.
    apply: maps the model and the images to the logits [batch, ..., classes] of `labels` [batch, ...].
  """

  def loss(arrays):
    logits = apply(model_of(shapes, rename, arrays, statistics), jnp.asarray(images))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

  (_, logits), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(
    {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}
  )
  return logits, slopes
