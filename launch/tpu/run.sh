#!/bin/bash
# A run on a Cloud TPU slice of several hosts: the same command on every host.
#
#   launch/tpu/run.sh create my-tpu us-east5-a v5litepod-64     # queued resource; waits until it is up
#   launch/tpu/run.sh install my-tpu us-east5-a                 # this checkout, onto every host
#   launch/tpu/run.sh run my-tpu us-east5-a train configs/runs/stdlib_lm.gin --out /shared/stdlib_lm
#   launch/tpu/run.sh stop my-tpu us-east5-a                    # SIGTERM: save and exit with 75
#   launch/tpu/run.sh delete my-tpu us-east5-a
#
# Needs gcloud, logged in, with a project set. t2x finds coordinator, number and ids of the processes in
# the slice's metadata. The run folder must be on a file system that all hosts share (Filestore, or a
# bucket mounted by gcsfuse). A run that was stopped goes on with the same `run`. SPOT=1 asks for spot
# capacity; RUNTIME sets another software version.

set -euo pipefail

verb=${1:?create, install, run, stop or delete}
name=${2:?name of the TPU}
zone=${3:?zone}
shift 3

on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="$1"
}

case "$verb" in
  create)
    gcloud compute tpus queued-resources create "$name" --node-id="$name" --zone="$zone" \
      --accelerator-type="${1:?accelerator type, as v5litepod-64}" \
      --runtime-version="${RUNTIME:-v2-alpha-tpuv5-lite}" ${SPOT:+--spot}
    until gcloud compute tpus queued-resources describe "$name" --zone="$zone" \
      --format='value(state.state)' | grep -q ACTIVE; do
      sleep 30
    done
    ;;
  install)
    git archive --format=tar.gz --output=/tmp/t2x.tar.gz HEAD
    gcloud compute tpus tpu-vm scp /tmp/t2x.tar.gz "$name:" --zone="$zone" --worker=all
    on_all_hosts 'mkdir -p t2x && tar xzf t2x.tar.gz -C t2x && cd t2x &&
      python3 -m venv .venv && .venv/bin/pip install --quiet -e ".[tpu]"'
    ;;
  run)
    on_all_hosts "cd t2x && exec .venv/bin/t2x $(printf '%q ' "$@")"
    ;;
  stop)
    on_all_hosts 'pkill -TERM -f bin/t2x'
    ;;
  delete)
    gcloud compute tpus queued-resources delete "$name" --zone="$zone" --force --quiet
    ;;
  *)
    echo "unknown: $verb" >&2
    exit 2
    ;;
esac
