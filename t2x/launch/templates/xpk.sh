#!/bin/bash
# Submits a run to the TPUs of a GKE cluster with xpk (https://github.com/AI-Hypercomputer/xpk).
#
#   bash FILE [OPTIONS OF xpk]
#
# Rendered by:
#   @@{source}
#
# A run that is interrupted exits with code 75 and is restarted; it resumes from the checkpoint. The run folder
# must be on a storage of the cluster (xpk storage create). `bash FILE --dry-run` prints the commands of xpk.

exec xpk workload create \
  @@{options}
  "$@"
