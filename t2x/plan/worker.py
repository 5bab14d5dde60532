"""The process that compiles a train step: reads files and overrides as JSON, prints a `Compiled` as JSON."""

import dataclasses
import json
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

from t2x.base.errors import UserError
from t2x.experiments import read_experiment
from t2x.plan import hlo
from t2x.plan.collectives import collectives
from t2x.plan.compiled import Compiled
from t2x.plan.saved import saved_bytes
from t2x.train import Program


def measure(files: Sequence[str], overrides: Sequence[str]) -> Compiled:
  """Compiles the train step of a config for the devices of this process and reads the program."""
  program = Program(read_experiment(files, overrides))
  start = time.monotonic()
  lowered: Any = program.lower_step()
  traced = time.monotonic()
  # Machine code is not optimised: it is not executed, and does not change memory and collectives.
  compiled = lowered.compile({'xla_backend_optimization_level': 0})
  end = time.monotonic()
  memory, read = compiled.memory_analysis(), hlo.Program(compiled.as_text() or '')
  return Compiled(
    arguments=memory.argument_size_in_bytes,
    temporaries=memory.temp_size_in_bytes,
    outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
    saved=saved_bytes(read),
    flops=read.flops(),
    unknown_loops=read.unknown_loops,
    collectives=tuple(collectives(read, dict(program.mesh.shape))),
    trace_seconds=round(traced - start, 1),
    compile_seconds=round(end - traced, 1),
    process_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
  )


def main() -> int:
  """Answers the request on stdin."""
  try:
    print(json.dumps(dataclasses.asdict(measure(*json.load(sys.stdin)))))
  except UserError as error:
    print(error, file=sys.stderr)
    return error.exit_code
  return 0


if __name__ == '__main__':
  sys.exit(main())
