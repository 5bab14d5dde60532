#!/bin/bash
# Trains on Cloud TPU VMs that are requested as a queued resource, with the same command on each host.
#
#   bash FILE           # creates the resource, installs t2x and trains; a preempted resource is created again
#   bash FILE create    # creates the resource and waits for it
#   bash FILE install   # installs this checkout on each host
#   bash FILE train     # starts or resumes the run
#   bash FILE stop      # SIGTERM: saves and exits with code 75
#   bash FILE delete
#
# Rendered by, in the folder of the checkout:
#   @@{source}
#
# Needs gcloud with an active account and a project. t2x reads the coordinator, the number and the ids of the
# processes from the metadata of the slices. The run folder must be on a file system that all hosts share
# (Filestore, or a bucket mounted by gcsfuse).

set -euo pipefail

resource=@@{resource}
zone=@@{zone}
slices=(@@{slices})

on_all_hosts() {
  local jobs=() failed=0
  for slice in "${slices[@]}"; do
    gcloud compute tpus tpu-vm ssh "$slice" --zone="$zone" --worker=all --command="$1" &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do
    wait "$job" || failed=$?
  done
  return "$failed"
}

state() {
  gcloud compute tpus queued-resources describe "$resource" --zone="$zone" --format='value(state.state)'
}

create() {
  gcloud compute tpus queued-resources create "$resource" --zone="$zone" \
    @@{nodes} --accelerator-type=@@{accelerator} \
    --runtime-version=@@{runtime}@@{spot}
  await
}

await() {
  while :; do
    case "$(state)" in
      ACTIVE) return ;;
      FAILED | SUSPENDED)
        echo "the queued resource ended: see gcloud compute tpus queued-resources describe $resource" >&2
        exit 1
        ;;
    esac
    sleep 30
  done
}

install() {
  local archive
  archive=$(mktemp --suffix=.tar.gz)
  git archive --format=tar.gz --output="$archive" HEAD
  for slice in "${slices[@]}"; do
    gcloud compute tpus tpu-vm scp "$archive" "$slice:t2x.tar.gz" --zone="$zone" --worker=all
  done
  rm "$archive"
  on_all_hosts 'mkdir -p t2x && tar xzf t2x.tar.gz -C t2x && cd t2x &&
    python3 -m venv .venv && .venv/bin/pip install --quiet -e ".[tpu]"'
}

train() {
  on_all_hosts "$(cat <<'END'
cd t2x && . .venv/bin/activate
@@{setup}
@@{command}
END
)"
}

stop() {
  on_all_hosts 'pkill -TERM -f bin/t2x'
}

delete() {
  gcloud compute tpus queued-resources delete "$resource" --zone="$zone" --force --quiet
}

start() {
  while :; do
    case "$(state 2> /dev/null)" in
      '') create ;;
      SUSPENDING | SUSPENDED | FAILED) delete && create ;;
      *) await ;;
    esac
    install
    code=0
    train || code=$?
    # A preempted resource is no longer active.
    if [ "$code" -eq 0 ] || [ "$(state)" = ACTIVE ]; then
      exit "$code"
    fi
    echo "the resource was preempted: requesting it again"
  done
}

case "${1:-start}" in
  start | create | install | train | stop | delete)
    "${1:-start}"
    ;;
  *)
    echo "unknown command '$1': must be start, create, install, train, stop or delete" >&2
    exit 2
    ;;
esac
