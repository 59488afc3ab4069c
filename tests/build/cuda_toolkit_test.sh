#!/bin/bash
# usage: cuda_toolkit_test.sh SOURCE WORK
# Configuration must choose the CUDA compiler that fits LibTorch, and print the reason in one line.
# If there is no such compiler, it must continue without one. Folders imitate compilers, toolkits
# and LibTorch.
set -euo pipefail
source=$1 work=$2
rm -rf "$work" && mkdir -p "$work" && cd "$work"
unset CUDA_HOME CUDA_PATH

fail() { echo "$*" >&2 && exit 1; }
cases=0

fake_toolkit() {  # FOLDER VERSION [compile error]: nvcc, headers and runtime
  local major=${2%%.*} minor=${2#*.}
  minor=${minor%%.*}
  mkdir -p "$1"/{bin,include,lib}
  touch "$1/include/cuda_runtime_api.h" "$1/lib/libcudart.so.$major"
  cat >"$1/bin/nvcc" <<EOF
#!/bin/sh
if [ "\$1" = --version ]; then echo "Cuda compilation tools, release ${2%.*}, V$2" && exit; fi
if [ -n "${3:-}" ]; then echo "${3:-}" >&2 && exit 1; fi
for word; do  # --compress-mode is new in 12.8
  case $major.$minor:\$word in
    11.* | 12.[0-7]:--compress-mode=*) echo "nvcc fatal   : Unknown option '\$word'" >&2 && exit 1 ;;
    12.[0-7]:*compute_1[02]0*) echo "nvcc fatal   : Unsupported gpu architecture '\$word'" >&2 && exit 1 ;;
  esac
done
echo "\$*" >>"$work/compiled"
EOF
  chmod +x "$1/bin/nvcc"
}
fresh() {  # nothing is installed, and LibTorch is a wheel with CUDA 13.2 and its runtime
  rm -rf site system compiled .venv
  mkdir -p site/torch site/nvidia/cu13/lib
  touch site/nvidia/cu13/lib/libcudart.so.13
  printf "cuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n" >site/torch/version.py
}
pypi() { fake_toolkit "$work/site/nvidia/cu13" 13.2.86 "${1:-}"; }
system() { fake_toolkit "$work/system" "$@"; }
configure() {
  local nvcc=
  if [ -x system/bin/nvcc ]; then nvcc=$work/system/bin/nvcc; fi
  rm -rf build
  cmake -S . -B build -G Ninja -D "FSDP_SYSTEM_NVCC=$nvcc" -D "FSDP_TORCH_ROOT=$work/site/torch" "$@" 2>&1
}
expect() {  # TEXT WANTED…: the text contains each of them, in spite of CMake's line breaks
  local flat wanted
  flat=$(tr -s ' \n' ' ' <<<"$1")
  for wanted in "${@:2}"; do
    if [[ $flat != *"$wanted"* ]]; then fail "expected: $wanted"$'\n'"got: $flat"; fi
  done
  cases=$((cases + 1))
}
says() {  # [option…] -- WANTED…: configuration succeeds and says so
  local options=() text
  while [ "$1" != -- ]; do options+=("$1") && shift; done
  text=$(configure "${options[@]}") || fail "refused: $text"
  if [ "$(grep -c '^-- CUDA:' <<<"$text")" != 1 ]; then fail "not one line about CUDA: $text"; fi
  expect "$text" "${@:2}"
}
refuses() {
  local options=() text
  while [ "$1" != -- ]; do options+=("$1") && shift; done
  if text=$(configure "${options[@]}"); then fail "accepted: $text"; fi
  expect "$text" "${@:2}"
}

cat >CMakeLists.txt <<EOF
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
include($source/cmake/CudaToolkit.cmake)
message("TAKEN \${FSDP_NVCC} ROOT \${FSDP_CUDA_ROOT} RUNTIME \${FSDP_CUDART}."
        " ERRORS \${FSDP_CUDA_ERRORS}.")
EOF
pypi_taken="TAKEN $work/site/nvidia/cu13/bin/nvcc ROOT $work/site/nvidia/cu13 RUNTIME"
system_taken="TAKEN $work/system/bin/nvcc ROOT $work/system RUNTIME"
wheel_runtime="RUNTIME $work/site/nvidia/cu13/lib/libcudart.so.13."

fresh && pypi && system 13.2.78
says -- "CUDA: 13.2.78, $work/system/bin/nvcc (fits LibTorch's 13.2)" "$system_taken" "$wheel_runtime"
system 13.4.92
says -- "CUDA: 13.4.92, $work/system/bin/nvcc (fits LibTorch's 13.2)" "$system_taken" 'ERRORS .'
system 13.0.88
says -- "CUDA: 13.2.86, $work/site/nvidia/cu13/bin/nvcc (fits LibTorch's 13.2; not $work/system/bin/nvcc: \
CUDA 13.0 is older than LibTorch's 13.2)" "$pypi_taken" "$wheel_runtime" \
  'ERRORS -Werror=all-warnings;-Xptxas=-Werror;-Xcompiler=-Werror.'
if grep -e '-Werror' compiled; then fail 'warnings of a trial are errors'; fi
system 12.8.93
says -- "$work/system/bin/nvcc: CUDA 12.8, and LibTorch has 13.2)" "$pypi_taken"
system 14.0.10
says -- "$work/system/bin/nvcc: CUDA 14.0, and LibTorch has 13.2)" "$pypi_taken"
system 13.2.86 'host_config.h:143:2: error: unsupported GNU version!'
says -- 'nvcc: it cannot compile the library with' 'error: unsupported GNU version!)' "$pypi_taken"
fresh && pypi && system 13.2.86 && rm system/include/cuda_runtime_api.h
says -- "the runtime's headers are not in $work/system/include)" "$pypi_taken"
fresh && system 13.2.86 && rm -r site/nvidia
says -- "$system_taken $work/system/lib/libcudart.so.13."
rm system/lib/libcudart.so.13
says -- 'CUDA: none' 'there is no libcudart.so.13 beside it. hint: tools/setup installs one' 'TAKEN ROOT'

fresh
says -- "CUDA: none, the GPU's part and its tests are left out: no nvcc was found. hint: tools/setup" 'TAKEN ROOT'
fake_toolkit .venv/lib/python3.11/site-packages/nvidia/cu13 13.2.86
says -- "TAKEN $work/.venv/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc" "$wheel_runtime"
says -D FSDP_CUDA=OFF -- 'CUDA: none' 'FSDP_CUDA is OFF' 'TAKEN ROOT'
if [ "$(wc -l <compiled)" != 1 ]; then fail "a trial a configuration was expected: $(cat compiled)"; fi
cmake -S . -B build -D FSDP_CUDA=ON >/dev/null 2>&1 && cmake -S . -B build >/dev/null 2>&1
if [ "$(wc -l <compiled)" != 2 ]; then fail "what compiled once was tried again: $(cat compiled)"; fi

# LibTorch for C++, first without CUDA and then with CUDA.
fresh && pypi && system 12.8.93 && rm site/torch/version.py
echo 2.15.0+cpu >site/torch/build-version
says -- "CUDA: 12.8.93, $work/system/bin/nvcc (LibTorch has no CUDA)" "$system_taken $work/system/lib/libcudart.so.12."
echo 2.15.0+cu132 >site/torch/build-version
says -- 'CUDA 12.8, and LibTorch has 13.2' "$pypi_taken"
fresh && pypi && system 12.8.93
printf 'cuda = None\n' >site/torch/version.py
says -- '(LibTorch has no CUDA)' "$system_taken"

# The toolkit is too old for the library. The build continues without its GPU part.
fresh && system 12.6.85 && printf 'cuda = None\n' >site/torch/version.py
says -- "CUDA: none, the GPU's part and its tests are left out: $work/system/bin/nvcc: it cannot compile the library" \
  "nvcc fatal : Unknown option '--compress-mode=none'. hint: tools/setup installs one" 'TAKEN ROOT'
pypi
says -- "CUDA: 13.2.86, $work/site/nvidia/cu13/bin/nvcc (LibTorch has no CUDA; not $work/system/bin/nvcc: it cannot" \
  "$pypi_taken"
refuses -D "FSDP_NVCC=$work/system/bin/nvcc" -- "FSDP_NVCC cannot be taken: $work/system/bin/nvcc: it cannot compile"
fresh && system 13.2.86 "nvcc fatal   : Unsupported gpu architecture 'compute_80'"
says -- 'CUDA: none' "nvcc fatal : Unsupported gpu architecture 'compute_80'"

# If the user names a compiler, it is used (also an older one) or refused, but never replaced.
fresh && pypi && fake_toolkit mine 13.0.88
named=(-D "FSDP_NVCC=$work/mine/bin/nvcc")
says "${named[@]}" -- "CUDA: 13.0.88, $work/mine/bin/nvcc (FSDP_NVCC names it; fits LibTorch's 13.2)" \
  "TAKEN $work/mine/bin/nvcc"
fake_toolkit mine 12.9.86
refuses "${named[@]}" -- "FSDP_NVCC cannot be taken: $work/mine/bin/nvcc: CUDA 12.9, and LibTorch has 13.2" \
  '-U FSDP_NVCC lets the build choose'
rm -r mine
refuses "${named[@]}" -- "FSDP_NVCC is $work/mine/bin/nvcc, which does not exist. hint: -U FSDP_NVCC"
echo "toolkits: $cases configurations as expected"
