"""Saved activations of compiled programs, read from their text."""

import pytest

from t2x.plan.hlo import Program
from t2x.plan.saved import saved_bytes

STEP = """HloModule m, is_scheduled=true

%product (a: f32[8,4], b: f32[4,8]) -> f32[8,8] {
  %a = f32[8,4]{1,0} parameter(0)
  %b = f32[4,8]{1,0} parameter(1)
  ROOT %d = f32[8,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (batch: f32[8,4], params: f32[4,8]) -> f32[8,8] {
  %batch = f32[8,4]{1,0} parameter(0), metadata={op_name="batch"}
  %params = f32[4,8]{1,0} parameter(1), metadata={op_name="state.params['w']"}
  %x = f32[8,4]{1,0} negate(%batch), metadata={op_name="jit(step)/jvp()/neg"}
  %y = f32[8,8]{1,0} FORWARD, metadata={op_name="jit(step)/jvp()/dot_general"}
  %z = f32[8,8]{1,0} BACKWARD, metadata={op_name="jit(step)/transpose(jvp())/dot_general"}
  ROOT %w = f32[8,8]{1,0} multiply(%y, %z), metadata={op_name="jit(step)/transpose(jvp())/mul"}
}
"""
PLAIN = 'dot(%x, %params), lhs_contracting_dims={1}, rhs_contracting_dims={0}'
FUSED = 'fusion(%x, %params), kind=kCustom, calls=%product'


@pytest.mark.parametrize('product', [PLAIN, FUSED], ids=['plain', 'fused'])
def test_the_backward_pass_starts_at_its_first_product_fused_or_not(product):
  # x [8, 4] and y [8, 8] in float32.
  text = STEP.replace('FORWARD', product).replace('BACKWARD', product)
  assert saved_bytes(Program(text)) == 4 * (8 * 4 + 8 * 8)
