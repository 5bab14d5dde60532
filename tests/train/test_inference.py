"""Which process prepares the rows of a split."""

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest

from t2x.data import Bytes, ConcatenateAndSplit, TextFiles
from t2x.tasks import CausalLM
from t2x.train.inference import Inference


@pytest.mark.parametrize('shared', [True, False])
def test_processes_prepare_together_if_the_task_shares_its_preparation(tmp_path, shared):
  (tmp_path / 'text.txt').write_text('some text')
  events = []

  @contextlib.contextmanager
  def process_zero_first():
    events.append('enter')
    yield
    events.append('leave')

  @dataclasses.dataclass(frozen=True)
  class Source(TextFiles):
    def fingerprint(self):
      events.append('fingerprint')
      return 'fingerprint'

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Task(CausalLM):
    shares_preparation = shared
    plan = ConcatenateAndSplit(8)

    def rows(self, split):
      events.append(f'rows of {split}')
      return [split]

  task = Task(source=Source(train=str(tmp_path / 'text.txt')), tokenizer=Bytes(), length=8)
  run = SimpleNamespace(processes=SimpleNamespace(process_zero_first=process_zero_first), task=task)
  assert Inference.rows(run, 'train') == ['train']
  # A source may download its data when its splits or its fingerprint are first used.
  assert events == (
    ['enter', 'fingerprint', 'leave', 'rows of train']
    if shared
    else ['enter', 'rows of train', 'leave']
  )


def test_tasks_over_text_share_their_preparation():
  assert CausalLM.shares_preparation
