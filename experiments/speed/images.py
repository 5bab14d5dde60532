"""Images per second of one data process: t2x and torchvision.

python experiments/speed/images.py --rounds 7 --out experiments/speed/results/images.csv

Batches of 16 images of 224x224 from JPEG files of 500x375, of parts of the photographs of scikit-learn. Contenders:
t2x; torchvision with its transforms of Pillow images; torchvision with its own decoder and transforms of uint8 tensors.
Each has one thread, as a worker process of a data loader, and reports its CPU time; `mixup`, which runs in the train
step, has all threads and reports time.
Each is a process of its own that stays alive and takes turns with the others. Needs the extra `references` for PyTorch,
and torchvision. Cases:

decode    JPEG -> pixels
evaluate  decode, central crop of 0.875, normalisation by channel
train     decode, random resized crop, flip, normalisation by channel
augment   as train, with RandAugment of 2 operations of magnitude 9 after the crop
mixup     MixUp of a batch in float32
"""

import argparse
import io
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rows import show
from workers import Worker, compare, serve

CASES = ('decode', 'evaluate', 'train', 'augment', 'mixup')
CONTENDERS = ('t2x', 'pillow', 'tensors')
BATCH, SIZE, CLASSES = 16, 224, 1000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photographs(count: int = 64) -> list[bytes]:
  """Returns JPEG files of 500x375 pixels."""
  from PIL import Image
  from sklearn.datasets import load_sample_images

  rng, files = np.random.default_rng(0), []
  for i in range(count):
    image = Image.fromarray(load_sample_images().images[i % 2])
    left, top = rng.uniform(0, 100), rng.uniform(0, 52)
    part = image.resize((500, 375), Image.Resampling.LANCZOS, (left, top, left + 500, top + 375))
    file = io.BytesIO()
    part.save(file, 'JPEG', quality=92)
    files.append(file.getvalue())
  return files


class Decoded(Sequence):
  """Examples that are decoded when they are read."""

  def __init__(self, files: list[bytes]):
    self.files = files

  def __len__(self) -> int:
    return len(self.files)

  def __getitem__(self, index):
    from PIL import Image

    return {'image': np.asarray(Image.open(io.BytesIO(self.files[index]))), 'label': 0}


def t2x_batches(case: str) -> Callable[[int], object]:
  """Returns a function that prepares the batch of a step, in a process like a data worker of t2x."""
  from t2x.process.allocator import set_worker_allocator

  set_worker_allocator()
  from t2x.data import (
    Batches,
    CentralCrop,
    Chain,
    CropAndResize,
    PrepareImage,
    RandAugment,
    RandomResizedCrop,
  )

  rows = Decoded(photographs())
  crop = CentralCrop() if case == 'evaluate' else RandomResizedCrop()
  steps = [
    CropAndResize(crop, SIZE, SIZE),
    *([RandAugment()] if case == 'augment' else []),
    PrepareImage(mean=MEAN, std=STD, flip=case != 'evaluate'),
  ]
  if case == 'decode':
    return lambda step: [rows[(step * BATCH + i) % len(rows)] for i in range(BATCH)]
  batches = Batches(rows, Chain(tuple(steps)), batch_size=BATCH, seed=0)
  return lambda step: batches[step]


def torch_batches(case: str, tensors: bool) -> Callable[[int], object]:
  """As `t2x_batches`."""
  import torch
  from PIL import Image
  from torchvision.io import decode_jpeg
  from torchvision.transforms import v2

  torch.set_num_threads(1)
  files = photographs()
  encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]

  def decoded(i: int) -> object:
    if tensors:
      return decode_jpeg(encoded[i])
    image = Image.open(io.BytesIO(files[i]))
    image.load()
    return image

  normalise = [
    v2.ToDtype(torch.float32, scale=True) if tensors else None,
    v2.Normalize(MEAN, STD),
  ]
  if not tensors:
    from torchvision import transforms

    normalise[0] = transforms.ToTensor()
  crops = {'evaluate': [v2.Resize(256, antialias=True), v2.CenterCrop(SIZE)]}
  crop = crops.get(case, [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(0.5)])
  augment = [v2.RandAugment(2, 28, fill=128)] if case == 'augment' else []
  transform = v2.Compose([*crop, *augment, *normalise])

  def batch(step: int) -> object:
    images = [decoded((step * BATCH + i) % len(files)) for i in range(BATCH)]
    return images if case == 'decode' else torch.stack([transform(image) for image in images])

  return batch


def mixup(contender: str) -> Callable[[int], object]:
  """Returns a function that mixes a batch."""
  images = np.random.default_rng(0).normal(size=(BATCH, SIZE, SIZE, 3)).astype(np.float32)
  if contender == 't2x':
    import jax

    from t2x.tasks import MixUp

    mix, device_images = jax.jit(MixUp()), jax.numpy.asarray(images)
    return lambda step: jax.block_until_ready(mix(device_images, jax.random.key(step)))
  import torch
  from torchvision.transforms import v2

  tensor, labels = torch.from_numpy(images).permute(0, 3, 1, 2), torch.arange(BATCH)
  mix = v2.MixUp(alpha=0.2, num_classes=CLASSES)
  return lambda step: mix(tensor, labels)


def work(contender: str, case: str) -> None:
  """Serves batches of one contender."""
  if case == 'mixup':
    prepare = mixup(contender)
  else:
    prepare = (
      t2x_batches(case) if contender == 't2x' else torch_batches(case, contender == 'tensors')
    )
  step = 0

  def take(batches: int) -> None:
    nonlocal step
    for _ in range(batches):
      prepare(step)
      step += 1

  serve(take, clock=time.perf_counter if case == 'mixup' else time.process_time)


def measure(case: str, rounds: int, contenders: Sequence[str]) -> list[dict]:
  """Returns a row for each contender."""
  # MixUp of torchvision does not depend on how images are decoded.
  names = [name for name in contenders if case != 'mixup' or name != 'pillow']
  workers = {name: Worker([__file__, '--work', name, case]) for name in names}
  return [
    {
      'case': case,
      'contender': name,
      'images_per_second': round(1e3 * BATCH / row['milliseconds']),
      **{key: round(row[key] / BATCH, 3) for key in ('milliseconds', 'fastest', 'slowest')},
      't2x_speed': row['t2x_speed'],
      'load': row['load'],
    }
    for name, row in compare(workers, rounds).items()
  ]


def main() -> None:
  """Prints and writes a row for each case and contender; times are of one image."""
  if sys.argv[1:2] == ['--work']:
    return work(*sys.argv[2:4])
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--cases', nargs='+', default=CASES, choices=CASES)
  parser.add_argument('--contenders', nargs='+', default=CONTENDERS, choices=CONTENDERS)
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--out', type=Path, metavar='FILE', help='CSV file to write')
  args = parser.parse_args()
  show(
    (row for case in args.cases for row in measure(case, args.rounds, args.contenders)), args.out
  )
  return None


if __name__ == '__main__':
  main()
