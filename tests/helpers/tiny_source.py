"""Sources and rows that tests hand to other processes."""

import dataclasses
import os
import time
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Texts:
  """Some sentences; `stall` blocks at the 50th and says so with a file."""

  count: int = 60
  version: int = 0
  stall: str | None = None

  def splits(self):
    return ('train',)

  def fingerprint(self):
    return f'texts-{self.count}-{self.version}'

  def load(self, split):
    return _Examples(self)


@dataclasses.dataclass(frozen=True)
class _Examples(Sequence):
  source: Texts

  def __len__(self):
    return self.source.count

  def __getitem__(self, i):
    if i == 50 and self.source.stall:
      open(self.source.stall, 'w').close()
      time.sleep(60)
    text = f'number {i} of {self.source.count}: ' + 'word ' * (i % 7)
    return {'text': text, 'source': text, 'target': text[::2]}


class Drawing:
  """Transform that adds a random number to a row."""

  def __call__(self, row, rng):
    return row | {'draw': rng.random()}


class Dying:
  """Batches of which one ends its process, or raises."""

  def __init__(self, at, raises=False):
    self.at, self.raises = at, raises

  def __getitem__(self, step):
    if step == self.at and self.raises:
      raise ValueError(f'step {step} is no good')
    if step == self.at:
      os._exit(9)
    return {'step': np.array(step)}


class Places:
  """Batches that report whether a large array is on the heap, and not mapped."""

  def __getitem__(self, step):
    place = np.empty(1 << 26, np.uint8).ctypes.data
    with open('/proc/self/maps') as file:
      heaps = [line.split()[0].split('-') for line in file if line.endswith('[heap]\n')]
    on_heap = any(int(start, 16) <= place < int(stop, 16) for start, stop in heaps)
    return {'on_heap': np.array(on_heap)}


@dataclasses.dataclass(frozen=True)
class InWorkers:
  """`Texts` whose 50th example does something in processes other than `main`; see `_act`."""

  action: str
  main: int
  place: str = ''

  def fingerprint(self):
    return Texts().fingerprint()

  def load(self, split):
    return _InWorkersExamples(self)


class _InWorkersExamples(_Examples):
  def __init__(self, source):
    object.__setattr__(self, 'source', source)

  def __len__(self):
    return 60

  def __getitem__(self, i):
    source = self.source
    if i == 50 and os.getpid() != source.main:
      _act(source.action, source.place)
    return Texts().load('train')[i] | ({'text': 0} if i == 50 and source.action == 'bad' else {})

  def __reduce__(self):
    return (_unpickle, (self.source,)) if self.source.action == 'unpickle' else super().__reduce__()


def _unpickle(source):
  raise ModuleNotFoundError('no module of yours')


def _act(action, place):
  if action == 'die':
    os._exit(9)
  if action == 'raise':
    raise ValueError('this is no good')
  if action == 'print':
    print('a library prints')
  if action == 'sleep':
    with open(place, 'a') as file:
      file.write(f'{os.getpid()}\n')
    time.sleep(60)
