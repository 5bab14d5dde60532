"""The compiled decoding step updates its caches in place and copies no parameters.

In a process of its own: the other tests compile without optimisations.
"""

import functools
import json
import math
import os
import re
import subprocess
import sys

import pytest

NUM_LAYERS = 3
# Sizes for which every cache and layer parameter is larger than any activation of a step.
SLOTS, WIDTH, HEADS, HIDDEN = 64, 64, 4, 256
HEAD_DIM = WIDTH // HEADS
SMALLEST = 4096


def decoding_program(strategy, batch):
  """The optimised program of decoding `batch` rows by a decoder with cross-attention, as text."""
  import jax.numpy as jnp
  from flax import nnx

  from t2x.decode.generation import _run
  from t2x.layers import MLP, MultiHeadAttention, RoPE, TokenEmbedding
  from t2x.layers.marks import Marks
  from t2x.models import Block, Decoder, Encoder, EncoderDecoder, Stack

  part = functools.partial
  attention = part(MultiHeadAttention, num_heads=HEADS)
  block = part(Block, mixer=attention, feed_forward=part(MLP, hidden_dim=HIDDEN))
  body = [
    part(kind, stack=part(Stack, num_layers=NUM_LAYERS, blocks=[one]), encoding=RoPE)
    for kind, one in ((Encoder, block), (Decoder, part(block, cross=attention)))
  ]
  model = EncoderDecoder(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=32),
    encoder=body[0],
    decoder=body[1],
    rngs=nnx.Rngs(0),
  )
  prompts, ones = jnp.zeros((batch, 8), jnp.int32), jnp.ones(batch, jnp.int32)
  return (
    _run.lower(
      model,
      prompts,
      8 * ones,
      56 * ones,
      None,
      {'source': jnp.zeros((batch, SLOTS), jnp.int32)},
      None,
      max_new_tokens=SLOTS - 8,
      strategy=strategy,
      num_return=1,
      eos_ids=(),
      pad_id=0,
      cache_dtype=None,
      marks=Marks(),
    )
    .compile()
    .as_text()
  )


def computations(text):
  """Name -> lines of each computation of an HLO module."""
  found, name = {}, None
  for line in text.splitlines():
    head = re.match(r'^(?:ENTRY )?%?([\w.\-]+) .*\{$', line)
    if head:
      name = head.group(1)
      found[name] = []
    elif line.startswith('}'):
      name = None
    elif name:
      found[name].append(line.strip())
  return found


def called(line):
  return re.findall(r'(?:calls|to_apply|body|condition)=%?([\w.\-]+)', line)


def large_instructions(text, batch, copies):
  """Yields (opcode, shape) of each instruction in the decoding loop whose result is as large as a cache
  or parameter; a fusion has the opcode of its root."""
  found = computations(text)
  loops = [line for lines in found.values() for line in lines if re.search(r'\bwhile\(', line)]
  # Only the decoding loop carries the generated tokens; scans over layers do not.
  (loop,) = [line for line in loops if f's32[{batch},{copies},{SLOTS - 8}]' in line]
  waiting, seen = called(loop), set()
  while waiting:
    name = waiting.pop()
    if name not in seen:
      seen.add(name)
      waiting += [other for line in found.get(name, ()) for other in called(line)]
  for name in seen:
    for line in found.get(name, ()):
      match = re.match(r'(?:ROOT )?%?[\w.\-]+ = \w+\[([\d,]*)\]\S* ([\w\-]+)\(', line)
      if match and math.prod(int(n) for n in match.group(1).split(',') if n) >= SMALLEST:
        opcode = match.group(2)
        if opcode == 'fusion':
          roots = [one for one in found[called(line)[0]] if one.startswith('ROOT')]
          opcode = f'fusion of {re.search(r" ([a-z][a-z-]*)[(]", roots[0]).group(1)}'
        yield opcode, match.group(1)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('strategy', 'batch', 'copies', 'caches'),
  [
    ('Greedy()', 1, 1, [(SLOTS, HEAD_DIM), (SLOTS, HEAD_DIM)]),
    pytest.param(
      *('Greedy()', 2, 1, [(SLOTS, HEAD_DIM), (SLOTS, HEAD_DIM)]), marks=pytest.mark.nightly
    ),
    # The beams share slots; their keys are transposed.
    ('Beam(2)', 2, 2, [(HEAD_DIM, 8 + 2 * (SLOTS - 8)), (8 + 2 * (SLOTS - 8), HEAD_DIM)]),
  ],
)
def test_the_decoding_step_copies_no_cache_and_no_parameter(strategy, batch, copies, caches):
  optimised = {
    name: value for name, value in os.environ.items() if name != 'JAX_DISABLE_MOST_OPTIMIZATIONS'
  }
  # The machine code of the program, which is not read here, is compiled without optimisations.
  optimised['XLA_FLAGS'] = (
    '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
  )
  code = (
    'import json, runpy, sys; from t2x.decode import Beam, Greedy; '
    'found = runpy.run_path(sys.argv[1]); '
    f"text = found['decoding_program']({strategy}, {batch}); "
    f"print(json.dumps(list(found['large_instructions'](text, {batch}, {copies}))))"
  )
  done = subprocess.run(
    [sys.executable, '-c', code, __file__],
    env=optimised,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  large = [tuple(one) for one in json.loads(done.stdout)]
  passed_on = {'parameter', 'get-tuple-element', 'tuple', 'bitcast'}
  worked = [one for one in large if one[0] not in passed_on]
  # Keys and values of each layer; the source's are only read. A loop over one sequence has no dimension for it.
  rows = f'{batch},' if batch > 1 else ''
  updates = [f'{rows}{HEADS},{a},{b}' for a, b in caches] * NUM_LAYERS
  fusion, inside = 'fusion of dynamic-update-slice', 'dynamic-update-slice'
  assert set(worked) <= {(opcode, shape) for opcode in (fusion, inside) for shape in updates}
  assert sorted(shape for opcode, shape in worked if opcode == fusion) == sorted(updates)


def test_a_copy_in_the_loop_is_detected():
  text = """
HloModule example
%body (p: (s32[2,1,56], f32[2,4,64,16])) -> (s32[2,1,56], f32[2,4,64,16]) {
  %p = (s32[2,1,56], f32[2,4,64,16]) parameter(0)
  %g = f32[2,4,64,16]{3,2,1,0} get-tuple-element(%p), index=1
  %c = f32[2,4,64,16]{3,2,1,0} copy(%g)
}
ENTRY %main (a: f32[2]) -> f32[2] {
  %w = (s32[2,1,56], f32[2,4,64,16]) while(%t), condition=%cond, body=%body
}
"""
  assert ('copy', '2,4,64,16') in list(large_instructions(text, 2, 1))
