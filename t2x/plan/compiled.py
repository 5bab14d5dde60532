"""Compiles the train step for fake CPU devices, in a process of its own, and reads the compiled program."""

import dataclasses
import json
import subprocess
from collections.abc import Sequence

from t2x.base import interpreter
from t2x.base.errors import UserError
from t2x.plan.collectives import Collective


@dataclasses.dataclass(frozen=True)
class Compiled:
  """The compiled train step on one device; bytes are those of XLA's memory analysis.

  Attributes:
    arguments: bytes of the state and the batch.
    temporaries: bytes of all other arrays.
    outputs: bytes of the outputs that do not share the buffer of an argument.
    saved: bytes that are computed from the batch and live when the backward pass starts.
    flops: FLOPs of the products of a step.
    unknown_loops: number of loops whose trip counts the compiler does not know.
    collectives: collectives of a step.
    trace_seconds: time to trace and lower the step.
    compile_seconds: time to compile it.
    process_bytes: peak memory of the compiling process.
  """

  arguments: int
  temporaries: int
  outputs: int
  saved: int
  flops: int
  unknown_loops: int
  collectives: tuple[Collective, ...]
  trace_seconds: float
  compile_seconds: float
  process_bytes: int

  @property
  def total(self) -> int:
    """Bytes of the step."""
    return self.arguments + self.temporaries + self.outputs


def compile_step(files: Sequence[str], overrides: Sequence[str], num_devices: int) -> Compiled:
  """Compiles the train step of a config in another process.

  Args:
    files: gin files.
    overrides: `NAME=VALUE` each.
    num_devices: number of fake devices.

  Raises:
    UserError: the step cannot be compiled.
  """
  # The process inherits the trusted folders.
  environment = interpreter.environment(JAX_PLATFORMS='cpu', JAX_NUM_CPU_DEVICES=str(num_devices))
  done = subprocess.run(
    interpreter.command('-m', 't2x.plan.worker'),
    input=json.dumps([list(files), list(overrides)]),
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    lines = done.stderr.strip().splitlines() or [f'exit code {done.returncode}']
    raise UserError(f'the train step cannot be compiled: {lines[-1]}', 1)
  fields = json.loads(done.stdout.splitlines()[-1])
  read = (Collective(**{**c, 'axes': tuple(c['axes'])}) for c in fields.pop('collectives'))
  return Compiled(**fields, collectives=tuple(read))
