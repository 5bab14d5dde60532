"""Reads the values of each evaluated example of a trial."""

import io
import math
from pathlib import Path

import numpy as np

from t2x.train.logs.writers import EXAMPLES

# Relative deviation of the mean of the examples from the metric, whose sums are float32.
_TOLERANCE = 1e-4


def read_examples(run: Path, metric: str, value: float) -> np.ndarray | None:
  """Reads the values of each example in the last evaluation of a trial.

  Args:
    run: the run folder.
    metric: name of the metric.
    value: value of the metric in this evaluation.

  Returns:
    The values [examples]; None if the metric is not declared as a mean over examples, an older version trained the
    trial, or the file is damaged or of another evaluation.
  """
  path = run / EXAMPLES
  try:
    # Opening a pipe would wait for a writer.
    with np.load(path if path.is_file() else io.BytesIO(), allow_pickle=False) as file:
      values = file[metric]
  except Exception:  # A damaged archive may raise any.
    return None
  if values.ndim != 1 or len(values) < 2 or values.dtype.kind != 'f':
    return None
  mean = float(values.mean(dtype=np.float64))
  return values if math.isclose(mean, value, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE**2) else None
