"""Kernels of attention and sums of gathered gradients on a GPU: their errors against a reference, then their times."""

import statistics
import time
from collections.abc import Callable

# Of outputs and gradients in bfloat16, relative to the largest value; as in tests/layers/attention/kernels.
TOLERANCE = 2e-2


def milliseconds(function: Callable, *arguments, repeat: int = 20) -> float:
  """Returns the median time of a jitted function, after two calls."""
  import jax

  times = []
  for _ in range(repeat + 2):
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    times.append(time.perf_counter() - start)
  return round(1e3 * statistics.median(times[2:]), 4)


def rows_by_name(batch: int, length: int) -> dict:
  """Returns name -> metadata of plain, padded and packed rows; the last padded row is empty."""
  import jax.numpy as jnp
  import numpy as np

  from t2x.layers import RowLayout, Tokens

  counts = np.linspace(length, 0, batch).astype(int)
  padded = (np.arange(length)[None] < counts[:, None]).astype(np.int32)
  segments, positions = np.zeros((2, batch, length), np.int32)
  for row in range(batch):
    ends = np.sort(np.random.default_rng(row).integers(1, length - 8, 5))
    for number, (start, end) in enumerate(zip([0, *ends], [*ends, length - 8], strict=True), 1):
      segments[row, start:end], positions[row, start:end] = number, np.arange(end - start)
  return {
    'plain': Tokens.row(length),
    'padded': Tokens.row(length, segments=jnp.asarray(padded), right_padded=True),
    'packed': Tokens(jnp.asarray(positions), jnp.asarray(segments), layout=RowLayout.PACKED),
  }


def cases(length: int, smoke: bool) -> list[tuple]:
  """Returns kinds of rows, patterns and the kernels to check on them."""
  from t2x.layers import XLA, Blockwise, Causal, Dense, Full, PallasMHA, Window

  cudnn, window = XLA('cudnn'), Causal() & Window(length // 4)
  pallas = PallasMHA(16, 16, interpret=True) if smoke else PallasMHA()
  others = [] if smoke else [PallasMHA(128, 64), PallasMHA(64, 64)]
  return [
    ('plain', Full(), [cudnn]),
    ('plain', Causal(), [cudnn, pallas, Dense()]),
    ('plain', window, [cudnn]),
    ('padded', Full(), [cudnn]),
    ('padded', Causal(), [cudnn]),
    ('packed', Full(), [pallas]),
    ('packed', Causal(), [pallas, *others, Blockwise(), Dense()]),
  ]


def check_attention(emit: Callable, smoke: bool) -> None:
  """Emits the errors of kernels in bfloat16 against dense attention in float32, and the time of forward and
  backward pass."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  from t2x.layers import AttentionInputs, Dense, DotProduct

  batch, length, heads, kv_heads, dim = (2, 64, 4, 2, 16) if smoke else (8, 1024, 12, 4, 64)
  rng = np.random.default_rng(0)
  arrays = [
    jnp.asarray(rng.normal(size=(batch, length, n, dim)), jnp.bfloat16)
    for n in (heads, kv_heads, kv_heads, heads)
  ]
  exact, kinds = [x.astype(jnp.float32) for x in arrays], rows_by_name(batch, length)

  def inputs(pattern, tokens, q, k, v):
    return AttentionInputs(DotProduct(q, k, dim**-0.5), v, pattern, tokens, tokens)

  def step(kernel, pattern, tokens):
    def loss(q, k, v, weights):
      out = kernel(inputs(pattern, tokens, q, k, v))
      return (out.astype(jnp.float32) * weights).sum(), out

    return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))

  for kind, pattern, kernels in cases(length, smoke):
    tokens = kinds[kind]
    # By default a GPU rounds the operands of float32 products to ten bits.
    with jax.default_matmul_precision('highest'):
      expected = jax.device_get(jax.tree.leaves(step(Dense(), pattern, tokens)(*exact)))
    for kernel in kernels:
      repeats = 1 if smoke else 20
      row = {'what': str(kernel), 'rows': kind, 'pattern': str(pattern), 'repeats': repeats}
      if reason := kernel.supports(inputs(pattern, tokens, *arrays[:3])):
        emit(**row, result=f'refused: {reason}')
        continue
      function = step(kernel, pattern, tokens)
      try:
        worst = max(map(error, jax.device_get(jax.tree.leaves(function(*arrays))), expected))
        time_ms = milliseconds(function, *arrays, repeat=repeats)
      except Exception as problem:
        emit(**row, result=f'FAILED: {type(problem).__name__}: {str(problem)[:200]}')
        continue
      result = 'ok' if worst <= TOLERANCE else 'WRONG'
      emit(**row, result=result, error=f'{worst:.1e}', milliseconds=time_ms)


def error(actual, expected) -> float:
  """Returns the largest absolute difference, relative to the largest value or 1; infinity for NaN."""
  import numpy as np

  difference = np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)).max()
  return float('inf') if np.isnan(difference) else difference / max(1.0, np.abs(expected).max())


def check_sums(emit: Callable, smoke: bool) -> None:
  """Emits the errors and times of the sums of gathered gradients by each path, for small and large tables."""
  import functools

  import jax
  import jax.numpy as jnp
  import numpy as np

  from t2x.layers import dtypes

  rng = np.random.default_rng(0)
  count, width = (512, 8) if smoke else (32 * 1024, 768)
  for rows in (16,) if smoke else (2, 1024, 50304):
    index = jnp.asarray(rows ** rng.random(count) - 1, jnp.int32)
    for dtype in (jnp.float32, jnp.bfloat16):
      gradient = jnp.asarray(rng.normal(size=(count, width)), dtype)
      expected = np.zeros((rows, width))
      np.add.at(expected, np.asarray(index), np.asarray(gradient, np.float64))
      table = jax.ShapeDtypeStruct((rows, width), jnp.float32)
      paths = {
        'scatter': lambda g, i, rows=rows: (
          jnp.zeros((rows, width)).at[i].add(g.astype(jnp.float32))
        ),
        'sorted scatter': functools.partial(dtypes.sorted_sum, table),
        'one-hot product': functools.partial(dtypes.one_hot_sum, table),
      }
      for path, function in paths.items():
        function = jax.jit(function)
        worst = error(jax.device_get(function(gradient, index)), expected)
        repeats = 2 if smoke else 10
        emit(
          what=path,
          table_rows=rows,
          dtype=jnp.dtype(dtype).name,
          result='ok' if worst <= 1e-5 else 'WRONG',
          error=f'{worst:.1e}',
          milliseconds=milliseconds(function, gradient, index, repeat=repeats),
          repeats=repeats,
        )
