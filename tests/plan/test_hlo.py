"""Compiled programs are read from their text."""

import jax
import jax.numpy as jnp
import pytest

from t2x.plan.hlo import Program


def test_products_in_loops_count_once_per_iteration():
  def step(x, weights):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)
    return x @ weights[0]

  shapes = (
    jax.ShapeDtypeStruct((8, 32), jnp.float32),
    jax.ShapeDtypeStruct((5, 32, 32), jnp.float32),
  )
  program = Program(jax.jit(step).lower(*shapes).compile().as_text())
  assert program.flops() == 6 * 2 * 8 * 32 * 32
  assert program.unknown_loops == 0


def test_convolutions_count_their_kernel():
  def convolve(x, kernel):
    return jax.lax.conv(x, kernel, (1, 1), 'VALID')

  shapes = (
    jax.ShapeDtypeStruct((2, 3, 8, 8), jnp.float32),
    jax.ShapeDtypeStruct((5, 3, 3, 3), jnp.float32),
  )
  program = Program(jax.jit(convolve).lower(*shapes).compile().as_text())
  assert program.flops() == 2 * (2 * 5 * 6 * 6) * (3 * 3 * 3)


LOOP = """HloModule m, is_scheduled=true

%body (p: (s32[], s32[7,2], f32[4,4])) -> (s32[], s32[7,2], f32[4,4]) {
  %p = (s32[], s32[7,2]{1,0}, f32[4,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %t = s32[7,2]{1,0} get-tuple-element(%p), index=1
  %x = f32[4,4]{1,0} get-tuple-element(%p), index=2
  %d = f32[4,4]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %r = (s32[], s32[7,2]{1,0}, f32[4,4]{1,0}) tuple(%i, %t, %d)
}

%condition (q: (s32[], s32[7,2], f32[4,4])) -> pred[] {
  ROOT %q = pred[] parameter(0)
}

ENTRY %main (a: s32[], b: s32[7,2], c: f32[4,4]) -> f32[4,4] {
  %a = s32[] parameter(0)
  %b = s32[7,2]{1,0} parameter(1)
  %c = f32[4,4]{1,0} parameter(2)
  %s = (s32[], s32[7,2]{1,0}, /*index=2*/f32[4,4]{1,0}) tuple(%a, %b, %c)
  %w = (s32[], s32[7,2]{1,0}, f32[4,4]{1,0}) while(%s), condition=%condition, body=%bodyTRIPS
  ROOT %o = f32[4,4]{1,0} get-tuple-element(%w), index=2
}
"""


@pytest.mark.parametrize(
  ('trips', 'times', 'unknown'),
  [(', backend_config={"known_trip_count":{"n":"3"}}', 3, 0), ('', 7, 1)],
  ids=['known', 'table of tiles'],
)
def test_loops_of_unknown_length_count_the_entries_of_their_table(trips, times, unknown):
  program = Program(LOOP.replace('TRIPS', trips))
  assert program.flops() == times * 2 * 4 * 4 * 4
  assert program.unknown_loops == unknown
  loop = program.computations['main']['w']
  assert [program.writes(loop, index) for index in range(3)] == [False, False, True]
