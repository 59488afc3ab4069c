#!/bin/bash
# usage: check_test.sh SOURCE WORK
# tools/check passes a small clean tree, and names each thing that is wrong in a bad one.
set -euo pipefail
source=$1 work=$2
rm -rf "$work" && mkdir -p "$work" && cd "$work"
git init -q .
mkdir -p tools include/fsdp src/base src/comm/cpu src/shard src/plan src/engine examples/hello_unit
mkdir -p src/runtime/cuda kernels/cuda docs .venv/lib/python3/site-packages/torch/include
cp "$source/tools/check" "$source/tools/count" tools/
cp "$source/.clang-format" .
echo '# a' >README.md
cat >CMakeLists.txt <<'EOF'
fsdp_layer(base HEADERS error.h)
fsdp_layer(runtime DEPENDS base)
fsdp_layer(comm DEPENDS runtime HEADERS mesh.h)
fsdp_layer(kernels DEPENDS runtime)
fsdp_layer(plan DEPENDS comm)
fsdp_layer(shard DEPENDS plan LIBRARIES torch::cpu)
fsdp_layer(engine DEPENDS shard LIBRARIES torch::cpu HEADERS unit.h)
EOF
for tour in examples/hello_unit/hello_unit.cpp src/plan/pass.cpp src/shard/unit_parameters.cpp \
  src/shard/unit_gradients.cpp src/comm/cpu/cpu_communicator.cpp; do
  echo '#include <fsdp/error.h>' >$tour
done
for header in error.h mesh.h unit.h; do
  echo '#pragma once' >include/fsdp/$header
done
echo '#include <fsdp/error.h>' >>include/fsdp/mesh.h

echo '#include <cuda_runtime.h>' >src/runtime/cuda/a.cpp
echo '#include "runtime/cuda/a.h"' >kernels/cuda/a.cu
echo '#include "runtime/cuda/cuda_library.h"' >src/runtime/open_cuda.cpp

text=$(tools/check 2>&1) || { echo "a clean tree was refused: $text" && exit 1; }

# refuses EXPECTED FILE CONTENT: the file makes the check fail with this text.
refuses() {
  local kept
  kept=$(mktemp) && if [ -f "$2" ]; then cp "$2" "$kept"; fi
  echo "$3" >"$2"
  if text=$(tools/check 2>&1); then echo "accepted: $2: $3" && exit 1; fi
  if [[ $text != *"$1"* ]]; then echo "expected: $1"$'\n'"got: $text" && exit 1; fi
  if [ -s "$kept" ]; then mv "$kept" "$2"; else rm "$2" "$kept"; fi
}

refuses 'src/base/a.cpp:1: layer base may not include comm/x.h (layer comm)' \
  src/base/a.cpp '#include "comm/x.h"'
refuses 'src/comm/a.h:1: layer comm may not include fsdp/unit.h (layer engine)' \
  src/comm/a.h '#include <fsdp/unit.h>'
refuses 'include/fsdp/error.h:1: layer base may not include fsdp/mesh.h (layer comm)' \
  include/fsdp/error.h '#include <fsdp/mesh.h>'
refuses 'src/comm/a.cpp:1: layer comm sees no LibTorch: <ATen/core/Tensor.h>' \
  src/comm/a.cpp '#include <ATen/core/Tensor.h>'
refuses 'src/shard/a.cpp:1: <torch/nn/module.h> is only for engine and the layers above it' \
  src/shard/a.cpp '#include <torch/nn/module.h>'
refuses 'src/runtime/a.cpp:1: cuda_runtime.h is for folders called cuda' \
  src/runtime/a.cpp '#include <cuda_runtime.h>'
refuses 'kernels/a.h:1: runtime/cuda/a.h is for folders called cuda' kernels/a.h '#include "runtime/cuda/a.h"'
refuses 'src/shard/a.cpp:1: c10/cuda/CUDAStream.h is for folders called cuda' \
  src/shard/a.cpp '#include <c10/cuda/CUDAStream.h>'
refuses 'kernels/cuda/a.cu:1: layer kernels may not include comm/x.h (layer comm)' \
  kernels/cuda/a.cu '#include "comm/x.h"'
refuses 'kernels/cuda/a.cu: not formatted' kernels/cuda/a.cu 'int   x;'
refuses 'kernels/cuda/a.cu: 401 lines, at most 400' kernels/cuda/a.cu "$(seq -f '// %.0f' 401)"
refuses 'kernels/a.cu: move it: nvcc compiles only kernels/cuda' kernels/a.cu 'int x;'
refuses 'include/fsdp/new.h: no layer owns it' include/fsdp/new.h '#pragma once'
refuses 'names include/fsdp/gone.h, which does not exist' \
  CMakeLists.txt 'fsdp_layer(base HEADERS gone.h)'
refuses 'depends on engine, which is not below it' \
  CMakeLists.txt 'fsdp_layer(base DEPENDS engine)'
refuses 'no fsdp_layer(…) line was found' CMakeLists.txt ''
refuses 'src/base/a.cpp: 401 lines, at most 400' src/base/a.cpp "$(seq -f '// %.0f' 401)"
refuses "src/base/string_utils.h: 'utils' does not say what the file contains" \
  src/base/string_utils.h '#pragma once'
refuses 'src/base/a.cpp: not formatted' src/base/a.cpp 'int   x;'
refuses 'include/fsdp/error.h: does not compile alone' include/fsdp/error.h 'std::string text();'
refuses 'src/base/a.cpp:1: a comment of more than 100 columns' \
  src/base/a.cpp "// $(printf '%098d' 0)"
mv .venv elsewhere
refuses 'no LibTorch in build/cpu or .venv' src/base/a.cpp '// nothing else is wrong'
mv elsewhere .venv
refuses 'a document names Engine::fly, which is not in the code' docs/flying.md 'Call `Engine::fly`.'
refuses 'the five files of the reading tour have 1203 lines, under 1200 wanted' \
  src/plan/pass.cpp "$(seq -f '// %.0f' 1199)"
refuses 'lines of README.md: 121, at most 120' README.md "$(seq 121)"
refuses 'comment lines that begin with What, Of, Where, Whether or Who: 31, at most 30' \
  src/base/a.cpp "$(seq -f '// What %.0f' 31)"
refuses 'comment lines with whoever, nobody or somebody: 11, at most 10' \
  src/base/a.cpp "$(seq -f '// nobody %.0f' 11)"
mv src/shard/unit_gradients.cpp kept
refuses 'src/shard/unit_gradients.cpp: of the reading tour, does not exist' src/base/a.cpp '// here'
echo "check: 28 refusals as expected"
