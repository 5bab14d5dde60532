"""Run by test_checkpoints.py: trains six steps and saves, or restores, and then trains ten more.
Prints a digest of the parameters in between and the ten losses."""

import argparse
import hashlib
import json
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from t2x.experiments import read_config
from t2x.parallel import connect, find_cluster
from t2x.train import TrainingRun

parser = argparse.ArgumentParser()
parser.add_argument('what', choices=['save', 'restore'])
parser.add_argument('config', type=Path)
parser.add_argument('folder', type=Path)
parser.add_argument('--coordinator')
parser.add_argument('--num-processes', type=int)
parser.add_argument('--process-id', type=int)
args = parser.parse_args()

cluster = find_cluster(args.coordinator, args.num_processes, args.process_id, 60)
processes = connect(cluster, 60, 60)
run = TrainingRun(read_config([args.config]).build(), args.folder, processes)
batches = run.batches(run.rows('train'))
losses = []


def trained(state, frozen, start, count):
  prepared, train_step = run.train_batches(batches, start), run.program.train_step()
  for _ in range(count):
    state, out = train_step(state, frozen, next(prepared)[1])
    losses.append(out.loss)
  prepared.close()
  return state


if args.what == 'save':
  state, frozen = run.init()
  state = trained(state, frozen, 0, 6)
  run.checkpoints.save(6, state)
  run.checkpoints.wait()
else:
  state, frozen, _ = run.restore()
digest = hashlib.sha256()
for leaf in jax.tree.leaves(state.params):
  digest.update(np.asarray(multihost_utils.process_allgather(leaf, tiled=True)).tobytes())
leaf = max(jax.tree.leaves(state.params), key=lambda one: one.size)
shard = leaf.addressable_shards[0].data.size / leaf.size
trained(state, frozen, 6, 10)
print(json.dumps({'digest': digest.hexdigest(), 'losses': losses[-10:], 'shard': shard}))
processes.finish()
