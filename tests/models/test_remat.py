"""What the policies of rematerialisation save and compute again, counted in the program of the gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from equations import equations
from halved import Halved
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental.pallas.ops.gpu.attention import mha

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers import XLA, Blockwise, Causal, Dense, LinearAttention
from t2x.models import Block
from t2x.models.remat import POLICIES

LENGTH = 8


def make_stack(make, kernel, **settings):
  return make.built(functools.partial(make.stack([make.block(kernel)], **settings), make.width))


def gradient(stack, x):
  def loss(stack, x):
    return (applied(stack, x, pattern=Causal())[0] ** 2).sum()

  return jax.value_and_grad(loss)(stack, x)


def count(jaxpr, name):
  return sum(equation.primitive.name == name for equation in equations(jaxpr))


def products(make, kernel, **settings):
  """Numbers of products in the gradient of a stack: all, and those in forward passes of Blockwise."""
  x = jnp.zeros((2, LENGTH, make.width))
  jaxpr = jax.make_jaxpr(gradient)(make_stack(make, kernel, **settings), x).jaxpr
  kernels = [e for e in equations(jaxpr) if e.params.get('name') == 'blockwise_forward']
  inside = sum(count(kernel.params['jaxpr'].jaxpr, 'dot_general') for kernel in kernels)
  return count(jaxpr, 'dot_general'), inside


@pytest.mark.parametrize('settings', [{}, {'unroll': 2}])
def test_saved_attention_is_not_computed_again(make, settings):
  numbers = functools.partial(products, make, Blockwise(4, 4), **settings)
  _, once = numbers(remat=None)
  total, twice = numbers(remat='full')
  assert twice == 2 * once > 0
  assert numbers(remat='attention') == (total - once, once)
  dots, inside = numbers(remat='dots_no_batch')
  assert inside == twice
  assert numbers(remat='dots_no_batch+attention') == (dots - once, once)


@pytest.mark.parametrize('kernel', [Dense(), XLA('xla')])
def test_dense_kernels_compute_only_their_scores_again(make, kernel):
  total, attention = (products(make, kernel, remat=name)[0] for name in ('full', 'attention'))
  assert total - attention == 1


def test_fused_attention_is_not_computed_again(monkeypatch):
  monkeypatch.setattr(cudnn, 'check_cudnn_version', lambda: 91000)
  monkeypatch.setattr(cudnn, 'check_compute_capability', lambda version: True)
  q = jnp.zeros((1, 64, 2, 64), jnp.bfloat16)

  def fused_by_cudnn(q):
    return jax.nn.dot_product_attention(q, q, q, is_causal=True, implementation='cudnn')

  def fused_by_pallas(q):
    return mha(q, q, q, None, causal=True, interpret=True)

  for attend, name, backward in (
    (fused_by_cudnn, 'dot_product_attention_fwd_wrapper', 0),
    (fused_by_pallas, 'pallas_call', 2),  # Two kernels of the backward pass are counted.
  ):

    def passes(remat, attend=attend, name=name, backward=backward):
      layer = jax.checkpoint(lambda q: jnp.sin(attend(q * 2.0)), policy=POLICIES[remat])
      jaxpr = jax.make_jaxpr(jax.grad(lambda q: layer(q).sum().astype(jnp.float32)))(q).jaxpr
      return count(jaxpr, name) - backward

    assert (passes('full'), passes('attention')) == (2, 1)


@pytest.mark.parametrize('unroll', [1, 2])
def test_gradients_equal_those_without_rematerialisation(make, unroll):
  x = jax.random.normal(jax.random.key(5), (2, LENGTH, make.width))
  plain, saved = (
    jax.jit(gradient)(make_stack(make, Blockwise(4, 4), unroll=unroll, remat=remat), x)
    for remat in (None, 'attention')
  )
  for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(saved), strict=True):
    np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-3)


def test_only_an_unrolled_stack_keeps_its_recomputation_apart_from_the_forward_pass(make):
  def barriers(unroll):
    stack, x = make_stack(make, Dense(), remat='full', unroll=unroll), jnp.zeros((2, 8, make.width))
    # On one CPU device the gradients of projections have barriers too. Traced anew for this layout.
    with in_step(layout=Halved('length')):
      program = jax.jit(lambda stack, x: gradient(stack, x)).lower(stack, x)
    return program.as_text().count('optimization_barrier')

  assert barriers(1) == 0
  assert barriers(2) > 0


def test_saving_attention_without_attention_kernels_is_refused(make):
  mixer = functools.partial(LinearAttention, num_heads=2)
  blocks = [
    functools.partial(Block, mixer=mixer, feed_forward=make.block().keywords['feed_forward'])
  ]
  with pytest.raises(UserError, match=r'no block of this stack has an attention kernel'):
    make.built(functools.partial(make.stack(blocks, remat='attention'), make.width))
  make.built(functools.partial(make.stack(blocks, remat='dots'), make.width))
