#!/bin/bash
# usage: torch_versions_test.sh SOURCE WORK
# Configuration must accept the supported versions of LibTorch and refuse other versions by name.
# tools/torch must pin each supported version, and the tools must refuse a version without pins.
set -euo pipefail
source=$1 work=$2
rm -rf "$work" && mkdir -p "$work" && cd "$work"

fail() { echo "$*" >&2 && exit 1; }
expect() {  # TEXT WANTED…: the text contains each of them, in spite of CMake's line breaks
  local flat wanted
  flat=$(tr -s ' \n' ' ' <<<"$1")
  for wanted in "${@:2}"; do
    if [[ $flat != *"$wanted"* ]]; then fail "expected: $wanted"$'\n'"got: $flat"; fi
  done
}

fake_torch() {  # VERSION: a folder that looks like it
  local folder=$work/libtorch-$1
  mkdir -p "$folder"/{lib,include/fmt,include/torch/headeronly}
  touch "$folder"/lib/lib{c10,torch_cpu}.so "$folder/include/fmt/format.h"
  printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH 0\n' \
    "${1%.*}" "${1#*.}" >"$folder/include/torch/headeronly/version.h"
}
configure() {  # VERSION [option…]: prints what CMake says; its exit status
  local version=$1
  if [ ! -d "libtorch-$version" ]; then fake_torch "$version"; fi
  rm -rf build
  cmake -S . -B build -G Ninja -D "FSDP_TORCH_ROOT=$work/libtorch-$version" "${@:2}" 2>&1
}
accepts() {
  text=$(configure "$@") || fail "refused: $*: $text"
  if grep -q 'CMake Warning' <<<"$text"; then fail "warned of: $*: $text"; fi
}
refuses() {  # VERSION [option…] -- WANTED…
  local arguments=()
  while [ "$1" != -- ]; do arguments+=("$1") && shift; done
  if text=$(configure "${arguments[@]}"); then fail "accepted: ${arguments[*]}"; fi
  expect "$text" "${@:2}"
}

cat >CMakeLists.txt <<EOF
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
include($source/cmake/Torch.cmake)
EOF
try_newer=(-D FSDP_TRY_NEWER_TORCH=ON)
for minor in 11 12 13 14 15; do accepts 2.$minor; done
refuses 2.10 -- 'is version 2.10; LibTorch 2.11 to 2.15 are supported' 'hint: tools/setup installs one'
refuses 2.10 "${try_newer[@]}" -- 'is version 2.10; LibTorch 2.11 to 2.15 are supported'
refuses 1.13 "${try_newer[@]}" -- 'is version 1.13; LibTorch 2.11 to 2.15 are supported'
refuses 2.16 -- 'is version 2.16; LibTorch 2.11 to 2.15 are supported' '-D FSDP_TRY_NEWER_TORCH=ON tries this one'
refuses 3.0 "${try_newer[@]}" -- 'is version 3.0; LibTorch 2.11 to 2.15 are supported'
text=$(configure 2.16 "${try_newer[@]}") || fail "2.16 was refused with the switch: $text"
expect "$text" 'CMake Warning' 'is version 2.16, newer than what is supported and tested: LibTorch 2.11 to 2.15'
fake_torch 2.12 && rm libtorch-2.12/include/torch/headeronly/version.h
refuses 2.12 -- 'is not a folder of LibTorch 2.11 to 2.15' 'include/torch/headeronly/version.h is missing'
# An installed package names the one LibTorch version that its libraries fit.
accepts 2.14 -D FSDP_BUILT_WITH_TORCH=2.14
refuses 2.14 -D FSDP_BUILT_WITH_TORCH=2.15 -- 'is version 2.14, but this fsdp was built with 2.15'

minors=
for pins in "$source"/tools/torch/*.txt; do
  version=$(basename "$pins" .txt)
  minors+="${version%.*} "
  grep -qx "torch==$version" "$pins" || fail "$pins does not pin torch==$version"
  gpu=$source/tools/torch-gpu/$version.txt
  if [ ! -f "$gpu" ]; then fail "$gpu is missing"; fi
  if unpinned=$(grep -Evxh '#.*|[a-z0-9-]+==[0-9.]+' "$pins" "$gpu"); then
    fail "$pins or $gpu: not a full pin: $unpinned"
  fi
  # The nvcc of each version has the major and minor number of the runtime, because headers and
  # compiler must match.
  runtime=$(sed -n 's/^nvidia-cuda-runtime==\([0-9]*\.[0-9]*\)\..*/\1/p' "$pins")
  for package in nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm; do
    grep -q "^$package==$runtime\." "$pins" || fail "$pins has no $package of CUDA $runtime"
  done
done
if [ "$minors" != '2.11 2.12 2.13 2.14 2.15 ' ]; then fail "tools/torch has pins for: $minors"; fi
default=$(sed -n 's/^default_torch=\([0-9.]*\).*/\1/p' "$source/tools/setup")
grep -qx "torch==$default" "$source/benchmarks/peers/requirements.txt" ||
  fail "benchmarks/peers/requirements.txt has another LibTorch than tools/setup's $default"

# The tools run in a copy, so that a tool that wrongly accepts a version installs nothing here.
mkdir copy && cp -r "$source/tools" copy/
for tool in setup test; do
  for version in 2.10.0 2.15 ../requirements ''; do
    code=0
    text=$(copy/tools/$tool --torch "$version" 2>&1) || code=$?
    if [ $code -ne 64 ]; then fail "tools/$tool --torch '$version' ended with $code: $text"; fi
    expect "$text" "LibTorch '$version' is not supported; these are: 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0"
  done
done
echo "versions: 6 accepted, 7 refused at configuration; 8 refused by the tools"
