#!/bin/bash
# usage: cuda_without_toolkit_test.sh SOURCE WORK
# On a machine without a toolkit, PyPI's compiler alone builds the GPU part. If it is missing too,
# configuration continues, the rest is built, and the GPU tests are skipped with the reason. The
# script hides the toolkit in its own mount namespace. If the system allows none, it ends with 77.
set -euo pipefail
source=$1 work=$2
if [ "${3:-}" != hidden ]; then
  as=() && if [ "$(id -u)" -ne 0 ]; then as=(--map-root-user); fi
  if ! unshare --mount "${as[@]}" true 2>/dev/null; then
    echo "skipped: this system allows no mount namespace (unshare --mount)" && exit 77
  fi
  exec unshare --mount "${as[@]}" env -u CUDA_HOME -u CUDA_PATH -u LIBRARY_PATH -u LD_LIBRARY_PATH -u CPATH \
    CCACHE_DISABLE=1 "$0" "$source" "$work" hidden
fi

fail() { echo "$*" >&2 && exit 1; }
mount --make-rprivate /
rm -rf "$work" && mkdir -p "$work/empty"

# After the toolkit is hidden, links in /usr/local/{include,lib} that point into it are dangling.
shopt -s nullglob
for folder in /usr/local/cuda-*/ /usr/local/cuda/ /opt/cuda*/ /usr/lib/cuda/ /usr/lib/nvidia-cuda-toolkit/; do
  if [ -L "${folder%/}" ] || [ ! -d "$folder" ]; then continue; fi
  mount --bind "$work/empty" "$folder"
done
libraries=/usr/lib/x86_64-linux-gnu
for file in /usr/bin/nvcc /usr/local/bin/nvcc /usr/include/{cuda,nv,crt}* /usr/local/include/cuda_runtime* \
  $libraries/lib{cudart,cudadevrt}* $libraries/libcuda.so* /usr/local/lib/lib{cudart,cudadevrt}*; do
  if [ ! -e "$file" ]; then continue; fi
  nothing=/dev/null && if [ -d "$file" ]; then nothing=$work/empty; fi
  mount --bind "$nothing" "$(realpath "$file")"
done
if [ -e /etc/ld.so.cache ]; then mount --bind /dev/null /etc/ld.so.cache; fi

# The hidden toolkit must not be found any more.
if found=$(command -v nvcc) && "$found" --version >/dev/null 2>&1; then fail "$found is still there"; fi
for header in cuda_runtime.h crt/host_config.h nv/target; do
  if echo "#include <$header>" | g++ -E -x c++ - >/dev/null 2>&1; then fail "<$header> is still found"; fi
done

configure() {
  rm -rf "$work/build"
  cmake -S "$source" -B "$work/build" -G Ninja -D CMAKE_BUILD_TYPE=Release -D FSDP_BUILD_EXAMPLES=OFF \
    -D FSDP_BUILD_BENCHMARKS=OFF -D CMAKE_CXX_COMPILER_LAUNCHER= "$@" 2>&1
}
build() {
  cmake --build "$work/build" --parallel "$(nproc)" --target "$@" >"$work/build.txt" 2>&1 ||
    fail "$(cat "$work/build.txt")"
}

text=$(configure) || fail "$text"
line=$(grep '^-- CUDA: ' <<<"$text")
[[ $line == *"/site-packages/nvidia/cu"*"/bin/nvcc (fits LibTorch"* ]] || fail "not PyPI's compiler: $line"
SECONDS=0
build fsdp_cuda
echo "built in $SECONDS s with $line"
libraries=$(ldd "$work/build/lib/libfsdp_cuda.so")
if grep 'not found' <<<"$libraries"; then fail "libraries are missing: $libraries"; fi
[[ $libraries == */site-packages/nvidia/cu*/lib/libcudart.so.* ]] || fail "another CUDA runtime: $libraries"
headers=$(cat "$work"/build/cuda/kernels/cuda/*.d | tr -d '\\' | tr -s ' ' '\n' |
  grep '/cuda_runtime\.h$' | sort -u)
[[ $headers == */site-packages/nvidia/* ]] || fail "other headers: $headers"
build cuda_tests
"$work/build/bin/cuda_tests" >"$work/tests.txt" || fail "$(cat "$work/tests.txt")"

# Hides only the compiler, because LibTorch for the CPU loads the runtime.
for folder in "$source"/.venv/lib/python3*/site-packages/nvidia/cu*/{bin,nvvm,include}; do
  mount --bind "$work/empty" "$folder"
done
text=$(configure) || fail "without any compiler: $text"
line=$(grep '^-- CUDA: ' <<<"$text")
[[ $line == "-- CUDA: none, "*"no nvcc was found. hint: tools/setup"* ]] || fail "a compiler was found: $line"
build runtime_tests kernels_tests
for tests in runtime kernels; do
  "$work/build/bin/${tests}_tests" >"$work/tests.txt" || fail "$(cat "$work/tests.txt")"
done
skipped='^cuda$|^cuda_resources$|^kernels_simulated$'
text=$(ctest --test-dir "$work/build" -R "$skipped" --verbose 2>&1) || fail "$text"
if [ "$(grep -c 'skipped: no nvcc was found. hint: tools/setup' <<<"$text")" != 3 ]; then
  fail "three tests were to be skipped with the reason: $text"
fi
echo "without a compiler the rest is built and tested, and the GPU's tests are skipped"
