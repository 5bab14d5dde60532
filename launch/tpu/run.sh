#!/bin/bash
# Runs t2x on a Cloud TPU slice of several hosts, with the same command on each host.
#
#   launch/tpu/run.sh create my-tpu us-east5-a v5litepod-64     # creates a queued resource and waits for it
#   launch/tpu/run.sh install my-tpu us-east5-a                 # installs this checkout on each host
#   launch/tpu/run.sh run my-tpu us-east5-a train configs/runs/stdlib_lm.gin --out /shared/stdlib_lm
#   launch/tpu/run.sh stop my-tpu us-east5-a                    # SIGTERM: saves and exits with code 75
#   launch/tpu/run.sh delete my-tpu us-east5-a
#
# Needs gcloud with an active account and a project. t2x reads the coordinator, the number and the ids of the
# processes from the slice's metadata. The run folder must be on a shared file system (Filestore, or a bucket
# mounted by gcsfuse). The same `run` command resumes a stopped run. SPOT=1 requests spot capacity; RUNTIME
# sets the TPU software version.

set -euo pipefail

verb=${1:?missing command: create, install, run, stop or delete}
name=${2:?missing name of the TPU}
zone=${3:?missing zone}
shift 3

on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="$1"
}

case "$verb" in
  create)
    gcloud compute tpus queued-resources create "$name" --node-id="$name" --zone="$zone" \
      --accelerator-type="${1:?missing accelerator type, such as v5litepod-64}" \
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
    echo "unknown command '$verb': must be create, install, run, stop or delete" >&2
    exit 2
    ;;
esac
