# Sets the flags of the GPU part:
#   FSDP_CUDA_FLAGS          flags for every .cu
#   FSDP_CUDA_ARCHITECTURES  the library's architectures, and warnings about spills
#   FSDP_CUDA_SIMULATED      replaces these for the simulated GPU: the architecture that it reads
#   FSDP_CUDA_PINNED         compiler versions that tools/setup installs; warnings are errors only with
#                            these, because other versions warn about other things
# GPUs from compute capability 8.0 on run one of the architectures directly. Later GPUs compile the newest PTX.
# All code is generated from the PTX of 8.0. The simulated GPU reads this PTX, too, so it is not compressed.
# Kernels that are bound by memory need no feature of a newer PTX, and nvcc needs half the time.
set(FSDP_CUDA_SIMULATED -gencode=arch=compute_80,code=[sm_80,compute_80])
set(FSDP_CUDA_ARCHITECTURES -Xptxas=-warn-spills,-warn-lmem-usage
    -gencode=arch=compute_80,code=[sm_80,sm_86,sm_89,sm_90,sm_100,sm_120,compute_80]
    -gencode=arch=compute_120,code=compute_120)

# A product and a sum are fused only where the source calls fma, so the bits are those of the CPU.
set(FSDP_CUDA_FLAGS -std=c++20 -O2 -fmad=false --compress-mode=none -lineinfo -ccbin=${CMAKE_CXX_COMPILER})
set(_host_flags -fPIC -fvisibility=hidden ${FSDP_WARNINGS})
list(REMOVE_ITEM _host_flags -Werror)  # added below, with the others
if(FSDP_SANITIZE)
  string(REPLACE "," ";" _sanitizers ${FSDP_SANITIZE})  # nvcc splits arguments at commas
  list(TRANSFORM _sanitizers PREPEND -fsanitize=)
  list(APPEND _host_flags -g1 -fno-omit-frame-pointer ${_sanitizers})
endif()
list(TRANSFORM _host_flags PREPEND -Xcompiler=)
list(APPEND FSDP_CUDA_FLAGS ${_host_flags})

set(FSDP_CUDA_PINNED)
file(GLOB _pins ${CMAKE_CURRENT_LIST_DIR}/../tools/torch/*.txt)
foreach(_file IN LISTS _pins)
  file(STRINGS ${_file} _line REGEX "^nvidia-cuda-nvcc==")
  string(REPLACE "nvidia-cuda-nvcc==" "" _line "${_line}")
  list(APPEND FSDP_CUDA_PINNED ${_line})
endforeach()
