"""Run by test_footprint.py in a process of its own, with eight fake devices: traces and compiles the train steps of
the cases on stdin, and prints their numbers as one JSON object."""

import json
import sys

from t2x.experiments import read_experiment
from t2x.plan import hlo
from t2x.plan.footprint import footprint
from t2x.plan.saved import saved_bytes
from t2x.train import Program
from tests.plan.tiny import FILES, SETTINGS, mesh_file


def compare(mesh, overrides):
  """Returns the traced and the compiled numbers of a case."""
  program = Program(read_experiment([*FILES, mesh_file(mesh)], [*SETTINGS, *overrides]))
  traced = footprint(program)
  compiled = program.lower_step().compile()
  memory, text = compiled.memory_analysis(), hlo.Program(compiled.as_text())
  return {
    'traced': {
      'arguments': traced.arguments,
      'saved': traced.saved,
      'flops': traced.flops,
      'total': traced.total,
    },
    'compiled': {
      'arguments': memory.argument_size_in_bytes,
      'saved': saved_bytes(text),
      'flops': text.flops(),
      'total': memory.argument_size_in_bytes + memory.temp_size_in_bytes,
    },
  }


if __name__ == '__main__':
  print(json.dumps({name: compare(*case) for name, case in json.load(sys.stdin).items()}))
