#!/usr/bin/env bash
# Starts the processes of one run on this machine; a run of several machines is started on each of them.
#
#   scripts/launch.sh [--procs N] [--nodes M --node-rank R --host HOST] [--port P] -- COMMAND ...
#
# One machine:   scripts/launch.sh --procs 2 -- target/release/pretrain-vision --config configs/smoke/resnet18_weince.yaml
# Two machines:  scripts/launch.sh --procs 2 --nodes 2 --node-rank 0 --host first.example --port 29500 -- COMMAND    (on the first)
#                scripts/launch.sh --procs 2 --nodes 2 --node-rank 1 --host first.example --port 29500 -- COMMAND    (on the second)
#
# --procs: processes on each machine [default: its GPUs, else 1]. --host: the machine of node rank 0, as the others reach it. --port: free
# on that machine [default: 29500]. It sets what torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
# MASTER_PORT), and on a CPU shares the processor's threads among the processes unless OMP_NUM_THREADS is given. When one process
# fails, the others here are stopped; its exit code is this script's. torchrun, with its restarts, and srun do as well.
set -euo pipefail

fail() { printf 'launch: error: %s\n' "$*" >&2; exit 2; }
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"; }
whole() { [[ "$2" =~ ^[0-9]+$ ]] || fail "$1: expected a whole number, found '$2'"; }

procs='' nodes=1 node_rank='' host='' port=29500
while [ $# -gt 0 ]; do
  case "$1" in
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    --procs | --nodes | --node-rank | --host | --port)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case "$1" in
        --procs) procs=$2 ;; --nodes) nodes=$2 ;; --node-rank) node_rank=$2 ;; --host) host=$2 ;; --port) port=$2 ;;
      esac
      shift 2 ;;
    *) fail "unknown argument '$1'; the command comes after --, see --help" ;;
  esac
done
[ $# -gt 0 ] || fail "no command; it comes after --, see --help"
if [ -z "$procs" ]; then
  procs=$( (command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU' || true)
  [ "$procs" -gt 0 ] || procs=1
fi
whole --procs "$procs"; whole --nodes "$nodes"; whole --port "$port"
[ "$procs" -ge 1 ] && [ "$nodes" -ge 1 ] || fail "--procs and --nodes: expected at least 1, found $procs and $nodes"
[ "$port" -ge 1 ] && [ "$port" -le 65535 ] || fail "--port: expected 1 to 65535, found $port"
if [ "$nodes" -eq 1 ]; then
  node_rank=${node_rank:-0} host=${host:-127.0.0.1}
fi
[ -n "$node_rank" ] || fail "--nodes $nodes needs --node-rank, 0 to $((nodes - 1)), another one on each machine"
[ -n "$host" ] || fail "--nodes $nodes needs --host, the machine of node rank 0"
whole --node-rank "$node_rank"
[ "$node_rank" -lt "$nodes" ] || fail "--node-rank: expected 0 to $((nodes - 1)), found $node_rank"

cores=$(nproc)
export WORLD_SIZE=$((procs * nodes)) LOCAL_WORLD_SIZE=$procs MASTER_ADDR=$host MASTER_PORT=$port
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores / procs > 0 ? cores / procs : 1))}

pids=()
# A stopped process ends by itself after saving; one that does not is killed by a second signal.
stop() { [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null || true; }
trap 'stop' INT TERM
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
for ((local_rank = 0; local_rank < procs; local_rank++)); do
  LOCAL_RANK=$local_rank RANK=$((node_rank * procs + local_rank)) "$@" &
  pids+=($!)
done

code=0
left=("${pids[@]}")
while [ ${#left[@]} -gt 0 ]; do
  ended='' status=0
  wait -n -p ended "${left[@]}" || status=$?
  # A signal that is trapped ends the wait with no process.
  [ -n "$ended" ] || continue
  remaining=()
  for pid in "${left[@]}"; do [ "$pid" = "$ended" ] || remaining+=("$pid"); done
  left=("${remaining[@]}")
  if [ "$status" -ne 0 ] && [ "$code" -eq 0 ]; then
    code=$status
    # The others notice by themselves that a process is gone, and name it; who does not within a while is stopped.
    [ ${#left[@]} -eq 0 ] || { (sleep 30; kill -TERM "${left[@]}"; sleep 30; kill -KILL "${left[@]}") >/dev/null 2>&1 & }
  fi
done
exit "$code"
