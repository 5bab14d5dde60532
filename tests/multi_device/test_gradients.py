"""Gradients of the train step on eight fake devices (a process of its own) equal those on one device."""

import pytest
from eight_devices import run_on_eight_devices

TERMS = """
from eight_devices import split
from loss_terms import TASKS, assert_close, batch_of, gradient, model_of, transformer
from t2x.models import LMHead
from t2x.parallel import Mesh

two_terms = model_of(TASKS['with_token_modelling'])
for name, model, mesh in (
  ('causal_lm', transformer(), Mesh(data=2, fsdp=2, tensor=2)),
  ('causal_lm', transformer(chunk=3), Mesh(data=2, context=2, tensor=2)),
  ('causal_lm', transformer(chunk=3, head=LMHead), Mesh(fsdp=2, context=2, tensor=2)),
  # 509 logits on two devices.
  ('causal_lm', transformer(3, LMHead, 509, 4), Mesh(data=4, tensor=2)),
  ('with_token_modelling', two_terms, Mesh(data=8)),
  ('with_token_modelling', two_terms, Mesh(data=2, fsdp=2, tensor=2)),
  ('detection', model_of(TASKS['detection']), Mesh(data=8)),
):
  batch = batch_of(TASKS[name], num_rows=16)
  one_device, metrics = gradient(TASKS[name], model, batch)
  placed, rows, layout = split(model, batch, mesh)
  for parts in (1, 2):
    grads, same = gradient(TASKS[name], placed, rows, parts, layout)
    # Sums in another order.
    assert_close(grads, one_device, 5e-6)
    assert_close(same, metrics, 5e-6)
"""

RANDOM_NUMBERS = """
import sys

from eight_devices import split
from loss_terms import assert_close, gradient
from random_rows import EXPERIMENTS, batch_of_rows
from t2x.parallel import Mesh

CASES = (
  ('images with MixUp', Mesh(data=2, fsdp=2, tensor=2), 2),
  ('images with MixUp', Mesh(data=8), 1),
  ('a reversible stack', Mesh(data=2, fsdp=2, context=2), 2),
)
for name, mesh, parts in CASES[:int(sys.argv[1])]:
  task, model = EXPERIMENTS[name]()
  batch = batch_of_rows(task)
  one_device, metrics = gradient(task, model, batch)
  placed, rows, layout = split(model, batch, mesh)
  grads, same = gradient(task, placed, rows, parts, layout)
  # Sums in another order.
  assert_close(grads, one_device, 5e-6)
  assert_close(same, metrics, 5e-6)
"""


@pytest.mark.nightly
def test_gradients_of_several_terms_on_eight_devices_equal_those_on_one():
  run_on_eight_devices(TERMS)


@pytest.mark.slow
@pytest.mark.parametrize('num_cases', [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_eight_devices_draw_the_random_numbers_of_one(num_cases):
  """With micro-batches, dropout, stochastic depth and MixUp."""
  run_on_eight_devices(RANDOM_NUMBERS, num_cases)
