# fsdp_layer(NAME [TORCH_FRONT_END] [DEPENDS layer…] [LIBRARIES target…] [HEADERS file of include/fsdp…])
# Adds a static library for a layer, with its declared dependencies. The sources are src/NAME/**.cpp (or
# kernels/**.cpp).
# TORCH_FRONT_END: the layer uses torch::nn and autograd, and gets their headers precompiled.
# Warnings are errors in the project's files. Third-party headers are SYSTEM. A missing initialiser is not a
# warning, because callers name only some members of options and error texts.
set(FSDP_WARNINGS -Wall -Wextra -Werror -Wno-missing-field-initializers)
# Under sanitizers GCC 12 warns about bounds that it cannot prove in inlined standard headers.
if(FSDP_SANITIZE)
  set(_sanitize -fsanitize=${FSDP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_compile_options(-O1 -g1 ${_sanitize})
  add_compile_options("$<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow;-Wno-maybe-uninitialized;-Wno-tsan>")
  add_link_options(${_sanitize})
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")
# Makes GCC collect garbage only above 2 GB. This saves a sixth of its time on LibTorch's headers. tools/build
# allows for 3.2 GB per compiler.
if(PROJECT_IS_TOP_LEVEL)
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-expand=1000 --param ggc-min-heapsize=2000000>")
endif()
find_program(FSDP_CCACHE ccache)
if(FSDP_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${FSDP_CCACHE})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# Compiles LibTorch's front end once, and not in every file that includes it (10 s each). -D
# CMAKE_DISABLE_PRECOMPILE_HEADERS=ON disables this.
add_library(torch_front_end OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/torch_front_end.cpp)
target_precompile_headers(torch_front_end PRIVATE <torch/nn/module.h>)
target_link_libraries(torch_front_end PRIVATE torch::cpu fsdp::fmt)
# Compiles several files together. Most of a file's time is spent on its includes. A precompiled header contains
# no instantiated templates, which cost 5 s per file for LibTorch. 0 compiles each file alone, as the preset
# cpu-debug does.
set(FSDP_UNITY_FILES 8 CACHE STRING "Files of a target that are compiled together")
set(FSDP_UNITY_TEST_FILES 16 CACHE STRING "Files of a test with LibTorch that are compiled together")
# fsdp_together(TARGET [FILES]) compiles the files of the target in groups of FILES (default FSDP_UNITY_FILES).
function(fsdp_together target)
  set(files ${ARGN} ${FSDP_UNITY_FILES})
  list(GET files 0 files)
  if(FSDP_UNITY_FILES GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
  endif()
endfunction()
function(fsdp_precompiled target)
  target_precompile_headers(${target} REUSE_FROM torch_front_end)
  fsdp_together(${target})
  get_target_property(_type ${target} TYPE)
  if(_type STREQUAL "EXECUTABLE")  # the precompiled header is compiled without CMake's -fPIE
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

# fsdp_public_headers(TARGET PUBLIC|INTERFACE file of include/fsdp…) installs headers with the target.
function(fsdp_public_headers target scope)
  set(headers ${ARGN})
  list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/include/fsdp/)
  target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${headers})
endfunction()

function(fsdp_layer name)
  cmake_parse_arguments(ARG "TORCH_FRONT_END" "" "DEPENDS;LIBRARIES;HEADERS" ${ARGN})
  if(name STREQUAL "kernels")
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cpp ${PROJECT_SOURCE_DIR}/kernels/cpu/*.cpp)
  else()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
    list(FILTER sources EXCLUDE REGEX "/cuda/")  # built by cmake/Cuda.cmake
  endif()
  set_property(GLOBAL APPEND PROPERTY FSDP_LAYERS fsdp_${name})
  if(NOT sources)  # header-only layer
    add_library(fsdp_${name} INTERFACE)
    list(TRANSFORM ARG_DEPENDS PREPEND fsdp_)
    target_link_libraries(fsdp_${name} INTERFACE ${ARG_DEPENDS} ${ARG_LIBRARIES})
    fsdp_public_headers(fsdp_${name} INTERFACE ${ARG_HEADERS})
    return()
  endif()
  add_library(fsdp_${name} STATIC ${sources})
  fsdp_public_headers(fsdp_${name} PUBLIC ${ARG_HEADERS})
  target_include_directories(fsdp_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_compile_features(fsdp_${name} PUBLIC cxx_std_20)
  target_compile_options(fsdp_${name} PRIVATE ${FSDP_WARNINGS})
  if(ARG_TORCH_FRONT_END)
    fsdp_precompiled(fsdp_${name})
  elseif(NOT name STREQUAL "kernels")  # its loops are compiled alone, because they are measured alone
    fsdp_together(fsdp_${name})
  endif()
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(fsdp_${name} PUBLIC fsdp_${dependency})
  endforeach()
  target_link_libraries(fsdp_${name} PUBLIC ${ARG_LIBRARIES} PRIVATE $<BUILD_INTERFACE:fsdp::fmt>)
endfunction()
