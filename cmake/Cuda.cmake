# Builds the GPU part: libfsdp_cuda.so, and the same objects for the simulated GPU of the tests.
#   fsdp_cuda_parts  src/runtime/cuda and kernels/cuda, without a CUDA runtime: its user links one
#   fsdp_cuda        the library that src/runtime/open_cuda.cpp opens if a program uses a GPU
include(CudaToolkit)

# Identifies the build. A program and the libfsdp_cuda.so that it opens must have the same layout of the types
# in these headers.
set(_build_header ${PROJECT_BINARY_DIR}/generated/fsdp_cuda_build.h)
file(GLOB _shared_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/runtime/*.h
     ${PROJECT_SOURCE_DIR}/kernels/*.h)
list(APPEND _shared_headers ${PROJECT_SOURCE_DIR}/src/runtime/cuda/cuda_library.h
     ${PROJECT_SOURCE_DIR}/include/fsdp/scalar_type.h ${PROJECT_SOURCE_DIR}/include/fsdp/error.h)
set(_build_of "${PROJECT_VERSION} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
add_custom_command(
  OUTPUT ${_build_header}
  COMMAND ${CMAKE_COMMAND} -D "BUILD_OF=${_build_of} ${FSDP_SANITIZE}" -D "FILES=${_shared_headers}"
          -D OUTPUT=${_build_header} -P ${CMAKE_CURRENT_LIST_DIR}/cuda_build_header.cmake
  DEPENDS ${_shared_headers} ${CMAKE_CURRENT_LIST_DIR}/cuda_build_header.cmake
  COMMENT "Number of this build" VERBATIM)
add_custom_target(fsdp_cuda_build DEPENDS ${_build_header})
add_dependencies(fsdp_runtime fsdp_cuda_build)
target_include_directories(fsdp_runtime PRIVATE ${PROJECT_BINARY_DIR}/generated)
set_source_files_properties(src/runtime/open_cuda.cpp PROPERTIES
  OBJECT_DEPENDS ${_build_header} COMPILE_DEFINITIONS FSDP_LIBRARY_DIR="${CMAKE_INSTALL_LIBDIR}")
target_link_libraries(fsdp_runtime PRIVATE ${CMAKE_DL_LIBS})
# The run paths by which dlopen finds the library by its name. The installation removes the first path.
# Installed programs use the second path.
list(APPEND CMAKE_BUILD_RPATH ${PROJECT_BINARY_DIR}/lib)
target_link_options(fsdp_runtime INTERFACE
  $<INSTALL_INTERFACE:-Wl,-rpath,$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}>)
if(NOT PROJECT_IS_TOP_LEVEL)
  target_link_options(fsdp_runtime INTERFACE $<BUILD_INTERFACE:-Wl,-rpath,${PROJECT_BINARY_DIR}/lib>)
endif()
if(NOT FSDP_NVCC)
  return()
endif()

# fsdp_cuda_object(VARIABLE source [SIMULATED] [FLAGS flag…]) appends the object of a .cu to the variable.
# SIMULATED: the object is only for the simulated GPU, in a test. That GPU has no registers, so nothing can
# spill.
function(fsdp_cuda_object variable source)
  cmake_parse_arguments(ARG "SIMULATED" "" "FLAGS" ${ARGN})
  set(architectures ${FSDP_CUDA_ARCHITECTURES})
  if(ARG_SIMULATED)
    set(architectures ${FSDP_CUDA_SIMULATED})
  endif()
  cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  cmake_path(GET object PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${FSDP_CCACHE} ${FSDP_NVCC} ${FSDP_CUDA_FLAGS} ${FSDP_CUDA_ERRORS} ${ARG_FLAGS} ${architectures}
            -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
            -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} ${FSDP_NVCC} DEPFILE ${object}.d COMMENT "CUDA ${name}" VERBATIM)
  set(${variable} ${${variable}} ${object} PARENT_SCOPE)
endfunction()

set(_library_source ${PROJECT_SOURCE_DIR}/kernels/cuda/cuda_library.cpp)
file(GLOB _kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
set(_kernel_objects)
foreach(_source IN LISTS _kernel_sources)
  fsdp_cuda_object(_kernel_objects ${_source})
endforeach()
file(GLOB _cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/runtime/cuda/*.cpp
                                          ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cpp)
list(REMOVE_ITEM _cuda_sources ${_library_source})
add_library(fsdp_cuda_parts STATIC ${_cuda_sources} ${_kernel_objects})
target_include_directories(fsdp_cuda_parts PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
target_include_directories(fsdp_cuda_parts SYSTEM PUBLIC ${FSDP_CUDA_ROOT}/include)
target_compile_options(fsdp_cuda_parts PRIVATE ${FSDP_WARNINGS})
target_link_libraries(fsdp_cuda_parts PUBLIC fsdp_runtime PRIVATE fsdp::fmt)

# The library exports one symbol. It has its own copy of the layers below it. The program has another copy.
add_library(fsdp_cuda SHARED ${_library_source})
add_dependencies(fsdp_cuda fsdp_cuda_build)
target_include_directories(fsdp_cuda PRIVATE ${PROJECT_BINARY_DIR}/generated)
target_compile_options(fsdp_cuda PRIVATE ${FSDP_WARNINGS})
set(_symbols ${CMAKE_CURRENT_LIST_DIR}/cuda_symbols.map)
target_link_libraries(fsdp_cuda PRIVATE fsdp_cuda_parts fsdp::fmt ${FSDP_CUDART})
target_link_options(fsdp_cuda PRIVATE -Wl,--version-script=${_symbols} -Wl,--no-undefined)
cmake_path(GET FSDP_CUDART PARENT_PATH _cudart_folder)
set_target_properties(fsdp_cuda PROPERTIES LINK_DEPENDS ${_symbols}
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib INSTALL_RPATH "$ORIGIN;${_cudart_folder}")
