#!/bin/bash
# A Slurm cluster on this machine, with a controller and two nodes, to try launch files.
#
#   launch/slurm/testbed/testbed.sh install      # Debian and Ubuntu, as root: the packages slurm-wlm and munge
#   launch/slurm/testbed/testbed.sh start
#   export SLURM_CONF=/tmp/t2x-slurm-$(id -u)/slurm.conf
#   sinfo
#   launch/slurm/testbed/testbed.sh stop         # ends the daemons and removes their files
#
# Each node is a daemon of its own with CPUS cores (default: 2), more than the machine has if need be. Runs as any
# user; jobs run as the same user. T2X_SLURM sets another folder for all files.

set -euo pipefail

folder=${T2X_SLURM:-/tmp/t2x-slurm-$(id -u)}
cpus=${CPUS:-2}
host=$(hostname -s)
nodes=("$host" "$host-second")
# Debian installs the daemons here, which is on the PATH of root only.
PATH=$PATH:/usr/sbin:/sbin

install() {
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends slurm-wlm munge
}

configure() {
  # Each folder has ports of its own.
  local hash port user
  hash=$(cksum <<< "$folder" | cut -d ' ' -f 1)
  port=$((20000 + hash % 4000 * 3))
  user=$(id -un)
  cat > "$folder/slurm.conf" <<END
ClusterName=t2x
SlurmctldHost=$host
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
# Slurm starts a requeued job only after the credentials of its last run have expired.
AuthInfo=socket=$folder/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdSpoolDir=$folder/%n
SlurmdPidFile=$folder/%n.pid
SlurmdLogFile=$folder/%n.log
# No control groups: neither root nor systemd are needed.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=30
SchedulerParameters=sched_interval=2,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName=${nodes[0]} NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=$cpus
NodeName=${nodes[1]} NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=$cpus
PartitionName=all Nodes=${nodes[0]},${nodes[1]} Default=YES MaxTime=INFINITE State=UP
END
  cat > "$folder/cgroup.conf" <<END
CgroupPlugin=cgroup/v1
CgroupAutomount=no
END
}

# Runs a daemon unless the process of its file NAME.pid is running.
daemon() {
  local name=$1
  shift
  is_running "$name" || "$@"
}

is_running() {
  local pid
  pid=$(cat "$folder/$1.pid" 2> /dev/null) || return
  # After a restart of the machine, another process may have this number.
  case $(ps -o comm= -p "$pid") in
    munged | slurmctld* | slurmd*) ;;
    *) return 1 ;;
  esac
}

start() {
  local missing
  for missing in munged slurmctld slurmd; do
    command -v "$missing" > /dev/null || {
      echo "$missing is not installed: run $0 install" >&2
      exit 1
    }
  done
  if [ -d "$folder" ] && [ ! -e "$folder/slurm.conf" ] && [ -n "$(ls -A "$folder")" ]; then
    echo "$folder has other files: set T2X_SLURM to another folder" >&2
    exit 1
  fi
  mkdir -p "$folder" "$folder/state"
  chmod 0755 "$folder"
  [ -s "$folder/munge.key" ] || (umask 077; head -c 1024 /dev/urandom > "$folder/munge.key")
  configure
  export SLURM_CONF=$folder/slurm.conf
  daemon munged munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
    --log-file="$folder/munged.log" --pid-file="$folder/munged.pid" --seed-file="$folder/munged.seed"
  daemon slurmctld slurmctld -i
  local node
  for node in "${nodes[@]}"; do
    daemon "$node" slurmd -N "$node"
  done
  local tries
  for tries in $(seq 60); do
    if [ "$(sinfo --noheader --Node --states=idle,mixed,allocated 2> /dev/null | wc -l)" -eq 2 ]; then
      echo "two nodes are up; export SLURM_CONF=$SLURM_CONF"
      return
    fi
    sleep 0.5
  done
  echo "the nodes are not up after 30 seconds: see $folder/*.log" >&2
  sinfo >&2 || true
  exit 1
}

stop() {
  [ -e "$folder/slurm.conf" ] || return 0
  export SLURM_CONF=$folder/slurm.conf
  if is_running slurmctld; then
    scancel --user="$(id -un)" 2> /dev/null || true
    # The nodes end the processes of the jobs.
    local tries
    for tries in $(seq 40); do
      [ -z "$(squeue --noheader 2> /dev/null)" ] && break
      sleep 0.5
    done
  fi
  local name tries
  for name in "${nodes[@]}" slurmctld munged; do
    is_running "$name" || continue
    kill "$(cat "$folder/$name.pid")"
    for tries in $(seq 40); do
      is_running "$name" || break
      sleep 0.25
    done
  done
  rm -rf "$folder"
}

case "${1:-}" in
  install | start | stop)
    "$1"
    ;;
  *)
    echo "unknown command '${1:-}': must be install, start or stop" >&2
    exit 2
    ;;
esac
