# How the GPU's part is compiled. Sets
#   FSDP_CUDA_FLAGS          for every .cu
#   FSDP_CUDA_ARCHITECTURES  what the library has code for, and that no kernel spills
#   FSDP_CUDA_SIMULATED      instead of these, what the simulated GPU reads
#   FSDP_CUDA_PINNED         the compiler versions that tools/setup installs: warnings are errors with
#                            these alone, as others warn of other things
# Every GPU since 8.0 runs one of the architectures as it is, a newer one compiles the PTX of the newest.
# The code of all of them is made from the PTX of 8.0, which is what the simulated GPU reads, so none is
# compressed; of what a newer PTX has, kernels that wait for memory need nothing, and nvcc takes half the
# time.
set(FSDP_CUDA_SIMULATED -gencode=arch=compute_80,code=[sm_80,compute_80])
set(FSDP_CUDA_ARCHITECTURES -Xptxas=-warn-spills,-warn-lmem-usage
    -gencode=arch=compute_80,code=[sm_80,sm_86,sm_89,sm_90,sm_100,sm_120,compute_80]
    -gencode=arch=compute_120,code=compute_120)

# No product and sum are fused but where the source says so: the bits are the CPU's.
set(FSDP_CUDA_FLAGS -std=c++20 -O2 -fmad=false --compress-mode=none -lineinfo -ccbin=${CMAKE_CXX_COMPILER})
set(_host_flags -fPIC -fvisibility=hidden ${FSDP_WARNINGS})
list(REMOVE_ITEM _host_flags -Werror)  # below, with the rest
if(FSDP_SANITIZE)
  string(REPLACE "," ";" _sanitizers ${FSDP_SANITIZE})  # nvcc takes a comma as an end
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
