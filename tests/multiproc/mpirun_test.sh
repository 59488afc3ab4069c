#!/bin/bash
# usage: mpirun_test.sh BINARY
# Starts ranks on two hosts with a real mpirun. They must connect to rank 0's store, and report
# missing variables. The second host is this machine under another name, which mpirun reaches
# through AGENT instead of ssh. The test is skipped (77) without Open MPI, or if the host's name
# cannot be changed.
set -euo pipefail
binary=$1
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun" && exit 77; }
unshare --uts true 2>/dev/null || { echo "skipped: a host's name may not be changed" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$binary/bin:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

cat >"$work/agent" <<'AGENT'
#!/bin/bash
exec unshare --uts bash -c 'hostname "$1" && shift && exec bash -c "$*"' agent "$@"
AGENT
chmod +x "$work/agent"

fail() {
  echo "$1" && cat "$work/out" "$work/err"
  exit 1
}

# Runs a program on two ranks of each host.
run_on_hosts() {
  local code=0
  mpirun --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include lo --mca btl_tcp_if_include lo \
    --host "$(hostname):2,other-host:2" -n 4 -x PATH "$@" >"$work/out" 2>"$work/err" || code=$?
  [ $code = "$expected_code" ] || fail "mpirun ended with $code"
}

(umask 077 && head -c 32 /dev/urandom >"$work/token")
address=(-x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=$((20000 + RANDOM % 20000))
  -x FSDP_JOB_TOKEN_FILE="$work/token")

expected_code=0
run_on_hosts "${address[@]}" torch_rank host 50
[ "$(sort -u "$work/out")" = "0.50 1.50 2.50 3.50" ] || fail "hosts heard otherwise"

expected_code=78
run_on_hosts torch_rank host 50
said='error\[78\] rank ./4 host [^ ]*: MASTER_ADDR is not set, but the ranks are on several hosts (LOCAL_WORLD_SIZE=2, WORLD_SIZE=4)'
grep -q "$said" "$work/err" || fail "nobody says what is missing"
! grep 'fsdp: ' "$work/err" | grep -v "$said" || fail "a rank says something else"

expected_code=0
run_on_hosts "${address[@]}" hello_unit --device cpu
! grep 'fsdp: ' "$work/err" | grep -v 'fsdp: note: 4 ranks are connected by Gloo on ' || fail "a rank complained"
