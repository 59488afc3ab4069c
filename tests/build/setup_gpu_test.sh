#!/bin/bash
# usage: setup_gpu_test.sh SOURCE WORK
# tools/setup must install LibTorch's GPU libraries once, if they are requested or a driver is
# found. Their versions must fit the LibTorch in the folder. The test runs in a copy of the tree,
# with imitations of pip, the loader's cache and the package list.
set -euo pipefail
source=$1 work=$2
rm -rf "$work" && mkdir -p "$work/bin" && cd "$work"
cp -r "$source/tools" .

fail() { echo "$*" >&2 && exit 1; }
fake() {  # FILE TEXT: writes a program with this text
  mkdir -p "$(dirname "$1")"
  printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"
}
fake bin/dpkg-query 'echo installed'
for folder in .venv .venv-torch-2.11.0; do fake $folder/bin/pip "echo \"\$*\" >>'$work/pip.txt'"; done
driver() { fake bin/ldconfig "echo '	libcudart.so.13 (libc6,x86-64) => /x'; ${1:-true}"; }
export PATH=$work/bin:$PATH

# installs WANTED [option…]: checks how often tools/setup calls pip, and with which package list.
installs() {
  local wanted=$1 found text
  shift
  : >pip.txt
  text=$(tools/setup "$@" 2>&1) || fail "tools/setup $*: $text"
  found="$(wc -l <pip.txt) $(sed -n 's,.*\(tools/torch-gpu/[0-9.]*txt\).*,\1,p' pip.txt)"
  if [ "$found" != "$wanted" ]; then fail "tools/setup $*: expected '$wanted', got '$found': $(cat pip.txt)"; fi
}
driver
if [ ! -e /proc/driver/nvidia/version ]; then
  installs '1 '
  installs '0 '
fi
driver "echo '	libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1'"
rm -f .venv/.installed-*
installs '2 tools/torch-gpu/2.15.0.txt'
installs '0 '
driver
rm .venv/.installed-*
installs '2 tools/torch-gpu/2.15.0.txt' --gpu
installs '0 '
installs '2 tools/torch-gpu/2.11.0.txt' --gpu --torch 2.11.0
# The installed libraries must match the package list of LibTorch's version, also without --gpu.
echo nvidia-nccl-cu13==2.30.8 >>tools/torch-gpu/2.15.0.txt
installs '1 tools/torch-gpu/2.15.0.txt'
grep -q -- '--no-deps' pip.txt || fail "pip may look for more: $(cat pip.txt)"
echo "setup: GPU libraries asked for, found by a driver, kept"
