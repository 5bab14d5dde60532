"""A causal language model that writes the digest of every batch it reads, so that the batches of runs can be compared."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from t2x.base.ranges import Text
from t2x.data.batches import Batch, Batches
from t2x.tasks import CausalLM

__all__ = ['RecordedLM']


class RecordedBatches(Batches):
  """Batches that append a line to a file when they are read: {"step": 0, "sha256": "..."}."""

  def __init__(self, batches: Batches, file: Path):
    vars(self).update(vars(batches))
    self.file = file

  def __getitem__(self, step: int) -> Batch:
    batch, digest = super().__getitem__(step), hashlib.sha256()
    for name in sorted(batch):
      digest.update(f'{name} {batch[name].dtype} {batch[name].shape}'.encode())
      digest.update(batch[name].tobytes())
    with self.file.open('a') as file:
      file.write(json.dumps({'step': step, 'sha256': digest.hexdigest()}) + '\n')
    return batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedLM(CausalLM):
  """Trains as `CausalLM`.

  Attributes:
    file: the file to which the digests of batches are appended.
  """

  file: Text

  def batches(self, rows: Any, **settings: Any) -> Batches:
    """Returns the batches of `CausalLM`, which are recorded."""
    return RecordedBatches(super().batches(rows, **settings), Path(self.file))
