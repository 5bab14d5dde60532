#!/bin/bash
# Submits a run to the TPUs of a GKE cluster with xpk (https://github.com/AI-Hypercomputer/xpk).
#
#   bash FILE [OPTIONS OF xpk]
#
# Rendered by:
#   t2x launch xpk configs/runs/stdlib_lm.gin configs/meshes/tpu_v5e.gin --cluster my-cluster --accelerator v5litepod-64 --image example.com/t2x:tpu --storage shared --gin.Trainer.batch_size=64
#
# A run that is interrupted exits with code 75 and is restarted; it resumes from the checkpoint. The run folder
# must be on a storage of the cluster (xpk storage create). `bash FILE --dry-run` prints the commands of xpk.

exec xpk workload create \
  --workload=stdlib-lm \
  --cluster=my-cluster \
  --tpu-type=v5litepod-64 \
  --num-slices=1 \
  --docker-image=example.com/t2x:tpu \
  --storage=shared \
  --max-restarts=100 \
  --restart-on-exit-codes=75 \
  --termination-grace-period-seconds=300 \
  --command='exec t2x train configs/runs/stdlib_lm.gin configs/meshes/tpu_v5e.gin --out /shared/runs/stdlib_lm --gin.Trainer.batch_size=64' \
  "$@"
