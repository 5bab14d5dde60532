#!/bin/bash
# Trains in 2 processes on this machine.
#
#   bash FILE
#
# Rendered by, in the folder of the gin files:
#   t2x launch local configs/runs/quickstart.gin configs/meshes/ddp.gin --processes 2 --cpu-devices 2
#
# The lines of each process are printed after its index. SIGTERM, SIGHUP and Ctrl-C save a checkpoint in all
# processes; the exit code is then 75, and the same script resumes the run.

set -eu

export JAX_PLATFORMS=cpu
export JAX_NUM_CPU_DEVICES=2

exec python3 -m t2x.launch.processes -n 2 -- \
  t2x train configs/runs/quickstart.gin configs/meshes/ddp.gin \
    --out runs/quickstart
