#!/bin/bash
# usage: launcher_signals_test.sh BINARY LAUNCHER
# Sends SIGTERM and SIGUSR1 to a launcher of two ranks, to one rank and, under srun, to the job step.
# LAUNCHER is torchrun, mpirun or srun, or the path of one. It must end with the code in
# docs/launchers.md, the newest checkpoint must be whole, and the run must resume from it. The test is
# skipped (77) if LAUNCHER cannot start two processes.
set -euo pipefail
binary=$1 launcher=${2##*/}
case $launcher in
  torchrun) start=("$2" --standalone --no-python --nproc-per-node 2) ;;
  # mpirun sends SIGTERM to the ranks after this time in seconds, and SIGKILL after twice this time.
  mpirun) start=("$2" -n 2 --mca odls_base_sigkill_timeout 3) ;;
  srun) start=("$2" -n 2 --nodelist "$(hostname -s)" --job-name "signals-$$") ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$binary/bin:$PATH OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
timeout 60 "${start[@]}" true >"$work/out" 2>&1 || { echo "skipped: $2 cannot start two processes" && exit 77; }

fail() {
  echo "$signal to $target: $1" && cat "$work/out" "$work/err"
  exit 1
}

ranks() { pgrep -f "^$binary/bin/resume_rank .*$work" || true; }
printed_step() { grep -qs "^step $1 " "$work/out"; }
no_rank_is_left() { [ -z "$(ranks)" ]; }
last_step() { grep '^step ' "$work/out" | tail -n 1 | cut -d ' ' -f 2; }

# Waits up to a minute until a command succeeds.
wait_until() {
  local i
  for ((i = 0; i < 1200; ++i)); do
    if "$@"; then return; fi
    sleep 0.05
  done
  fail "waited for '$*'"
}

steps=60
training=("$binary/bin/resume_rank" --device cpu --save-dir "$work/saves")

# Runs a training that gets the signal. Sets `code`, the launcher's exit code.
run_with_signal() {
  local pid
  rm -rf "$work/saves" "$work/out"
  "${start[@]}" "${training[@]}" --steps $steps --pause-ms 100 >"$work/out" 2>"$work/err" &
  pid=$!
  wait_until printed_step 3
  case $target in
    launcher) kill -$signal $pid ;;
    rank) kill -$signal "$(ranks | tail -n 1)" ;;
    step) scancel --signal=$signal --name="signals-$$" ;;
  esac
  code=0
  wait $pid 2>/dev/null || code=$?
  wait_until no_rank_is_left
}

check_save_and_resume() {
  local newest
  # The lock remains if rank 0 is killed.
  [ ! -e "$work/saves/.fsdp.lock" ] || fail "rank 0 did not end by itself"
  fsdp-ckpt verify "$work/saves" >>"$work/out" || fail "a checkpoint is not whole"
  newest=$(find "$work/saves" -name 'step-*' -printf '%f\n' | sort | tail -n 1)
  newest=$((10#${newest#step-}))
  case $signal in
    TERM) [ $newest = "$(last_step)" ] || fail "the newest checkpoint is of step $newest" ;;
    USR1) [ "$(last_step)" = $steps ] || fail "the training did not go on" ;;
  esac
  "${start[@]}" "${training[@]}" --steps $((newest + 1)) --resume auto >"$work/out" 2>"$work/err" ||
    fail "cannot resume"
  grep -q "resumed from step $newest " "$work/err" || fail "the run resumes from another step"
  printed_step $((newest + 1)) || fail "the resumed run did not train"
}

targets=(launcher rank)
if [ $launcher = srun ]; then targets+=(step); fi
for signal in TERM USR1; do
  for target in "${targets[@]}"; do
    run_with_signal
    expected=0 saves=yes
    case $launcher-$signal-$target in
      torchrun-TERM-launcher | mpirun-TERM-launcher) expected=1 ;;
      torchrun-USR1-launcher) expected=138 saves=no ;; # the ranks continue without torchrun
      srun-TERM-launcher) expected=137 saves=no ;;     # srun kills the ranks
    esac
    [ $code = $expected ] || fail "the launcher ended with $code instead of $expected"
    if [ $saves = yes ]; then check_save_and_resume; fi
    if [ $saves = no ] && compgen -G "$work/saves/step-*" >/dev/null; then
      fail "docs/launchers.md says that nothing is saved"
    fi
  done
done
