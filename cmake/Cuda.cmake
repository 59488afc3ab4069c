# The GPU's part: libfsdp_cuda.so, and the same objects for the simulated GPU of the tests.
#   fsdp_cuda_parts   src/runtime/cuda and kernels/cuda, without a CUDA runtime: who links it brings one
find_program(FSDP_NVCC nvcc HINTS /usr/local/cuda/bin)
if(NOT FSDP_NVCC)
  message(STATUS "CUDA: none, no nvcc was found; the GPU's part and its tests are left out")
  return()
endif()
cmake_path(GET FSDP_NVCC PARENT_PATH _cuda_bin)
cmake_path(GET _cuda_bin PARENT_PATH FSDP_CUDA_ROOT)
message(STATUS "CUDA: ${FSDP_NVCC}")

set(FSDP_CUDA_FLAGS -std=c++20 -O2 -fmad=false --compress-mode=none -lineinfo)
set(FSDP_CUDA_ARCHITECTURES -gencode arch=compute_80,code=[sm_80,compute_80])

# fsdp_cuda_object(VARIABLE source): appends the object file of a .cu to the variable.
function(fsdp_cuda_object variable source)
  cmake_path(GET source STEM name)
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${FSDP_NVCC} ${FSDP_CUDA_FLAGS} ${FSDP_CUDA_ARCHITECTURES} -Xcompiler=-fPIC,-Wall,-Wextra
            -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
            -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "CUDA ${name}.cu" VERBATIM)
  set(${variable} ${${variable}} ${object} PARENT_SCOPE)
endfunction()

file(GLOB _kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
set(_kernel_objects)
foreach(_source IN LISTS _kernel_sources)
  fsdp_cuda_object(_kernel_objects ${_source})
endforeach()
file(GLOB _cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/runtime/cuda/*.cpp
                                          ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cpp)
add_library(fsdp_cuda_parts STATIC ${_cuda_sources} ${_kernel_objects})
target_include_directories(fsdp_cuda_parts PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
target_include_directories(fsdp_cuda_parts SYSTEM PUBLIC ${FSDP_CUDA_ROOT}/include)
target_compile_options(fsdp_cuda_parts PRIVATE ${FSDP_WARNINGS})
target_link_libraries(fsdp_cuda_parts PUBLIC fsdp_runtime PRIVATE fsdp::fmt)
