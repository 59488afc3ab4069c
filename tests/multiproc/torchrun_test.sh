#!/bin/bash
# usage: torchrun_test.sh BINARY TORCHRUN
# Under a real torchrun, training must have the bits of fsdp-run's losses and leave no files. When a
# rank is killed, torchrun's first start of the job ends. Its second start must connect again and
# train the same. If two torchruns run, as on two hosts, the ranks must connect to the store of
# their agents.
set -euo pipefail
binary=$1 torchrun=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_RUNTIME_DIR=$work/runtime PATH=$binary/bin:$PATH
mkdir -m 700 "$XDG_RUNTIME_DIR"

fail() {
  echo "$1" && cat "$work"/torchrun.*
  exit 1
}

run() {
  "$torchrun" --standalone --no-python --nproc-per-node 2 "$@" \
    >"$work/torchrun.out" 2>"$work/torchrun.err" || fail "torchrun ended with $?"
}

fsdp-run -n 2 training_rank 8 30000 >"$work/expected"
[ "$(grep -c '^step . loss ' "$work/expected")" = 8 ]

run training_rank 8 30000
cmp "$work/expected" "$work/torchrun.out" || fail "torchrun's ranks train otherwise"
! grep 'fsdp: ' "$work/torchrun.err" || fail "a rank complained"
[ -z "$(ls -A "$XDG_RUNTIME_DIR")" ] || fail "a file stayed"

run --max-restarts 1 sh -c 'test "$TORCHELASTIC_RESTART_COUNT" = 1 && exec training_rank 8 30000
                            exec training_rank 8 30000 kill 1 4 backward 1 0'
grep -q '^hit ' "$work/torchrun.out" || fail "no rank was hit"
tail -n 8 "$work/torchrun.out" | cmp "$work/expected" || fail "the restarted ranks train otherwise"

port=$((20000 + RANDOM % 20000))
for node in 0 1; do
  "$torchrun" --nnodes 2 --node-rank $node --master-addr 127.0.0.1 --master-port $port --no-python \
    --nproc-per-node 2 torch_rank host 50 >"$work/torchrun.out.$node" 2>"$work/torchrun.err.$node" &
done
wait -n && wait -n || fail "a torchrun of two ended with $?"
[ "$(cat "$work"/torchrun.out.* | sort -u)" = "0.50 1.50 2.50 3.50" ] || fail "hosts heard otherwise"
