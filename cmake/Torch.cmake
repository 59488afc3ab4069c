# Imports LibTorch without find_package(Torch). For a CUDA wheel, find_package(Torch) requires nvcc even for
# plain C++, rewrites architecture flags and links libtorch_cuda into everything. The targets are:
#   torch::headers  include folders and definitions
#   torch::cpu      libtorch_cpu and libc10
#   fsdp::fmt       the fmt headers that LibTorch ships. They are on a separate include path, so that
#                   layers without torch see no torch header. src/base/fmt.cpp is its library.
# The search order is: FSDP_TORCH_ROOT; CMAKE_PREFIX_PATH (the folder of a LibTorch, or its share/cmake, which
# torch.utils.cmake_prefix_path prints); the project's .venv.
if(NOT FSDP_TORCH_ROOT)
  file(GLOB _venv_torch ${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch)
  find_file(_torch_header include/torch/csrc/api/include/torch/torch.h
            HINTS ${_venv_torch} PATH_SUFFIXES ../.. NO_CACHE)
  if(NOT _torch_header)
    message(FATAL_ERROR "LibTorch was not found. hint: run tools/setup, or point CMAKE_PREFIX_PATH "
                        "or FSDP_TORCH_ROOT at a LibTorch folder (the one with include/ and lib/)")
  endif()
  string(REPLACE "/include/torch/csrc/api/include/torch/torch.h" "" FSDP_TORCH_ROOT ${_torch_header})
  cmake_path(NORMAL_PATH FSDP_TORCH_ROOT)
endif()
set(FSDP_TORCH_ROOT ${FSDP_TORCH_ROOT} CACHE PATH "LibTorch folder with include/ and lib/")

# The versions on which all tests pass. Binding storages and capturing gradients use interfaces that change
# between versions of LibTorch.
set(_torch_oldest 2.11)
set(_torch_newest 2.15)
set(_torch_supported "LibTorch ${_torch_oldest} to ${_torch_newest}")
option(FSDP_TRY_NEWER_TORCH "Accept a LibTorch 2 that is newer than what is supported" OFF)
foreach(_file torch/headeronly/version.h torch/csrc/api/include/torch/version.h)  # older versions have the second
  set(_torch_version_file ${FSDP_TORCH_ROOT}/include/${_file})
  if(EXISTS ${_torch_version_file})
    break()
  endif()
endforeach()
if(NOT EXISTS ${FSDP_TORCH_ROOT}/lib/libtorch_cpu.so OR NOT EXISTS ${_torch_version_file})
  message(FATAL_ERROR "${FSDP_TORCH_ROOT} is not a folder of ${_torch_supported}: lib/libtorch_cpu.so or "
                      "include/torch/headeronly/version.h is missing. hint: set FSDP_TORCH_ROOT anew")
endif()
file(STRINGS ${_torch_version_file} FSDP_TORCH_VERSION REGEX "define TORCH_VERSION_M(AJOR|INOR) ")
list(TRANSFORM FSDP_TORCH_VERSION REPLACE "[^0-9]" "")
list(JOIN FSDP_TORCH_VERSION "." FSDP_TORCH_VERSION)
set(_torch_found "LibTorch in ${FSDP_TORCH_ROOT} is version ${FSDP_TORCH_VERSION}")
if(FSDP_BUILT_WITH_TORCH)  # an installed package, whose libraries fit one version only
  if(NOT FSDP_TORCH_VERSION STREQUAL FSDP_BUILT_WITH_TORCH)
    message(FATAL_ERROR "${_torch_found}, but this fsdp was built with ${FSDP_BUILT_WITH_TORCH}. hint: point "
                        "FSDP_TORCH_ROOT at that version, or build and install fsdp with this one")
  endif()
elseif(FSDP_TORCH_VERSION VERSION_LESS _torch_oldest OR FSDP_TORCH_VERSION VERSION_GREATER_EQUAL 3)
  message(FATAL_ERROR "${_torch_found}; ${_torch_supported} are supported. "
                      "hint: tools/setup installs one of these into .venv")
elseif(FSDP_TORCH_VERSION VERSION_GREATER _torch_newest)
  if(NOT FSDP_TRY_NEWER_TORCH)
    message(FATAL_ERROR "${_torch_found}; ${_torch_supported} are supported. hint: tools/setup installs one "
                        "of these into .venv; -D FSDP_TRY_NEWER_TORCH=ON tries this one: run all tests then")
  endif()
  message(WARNING "${_torch_found}, newer than what is supported and tested: ${_torch_supported}")
endif()

if(NOT TARGET torch::headers)
  add_library(torch::headers INTERFACE IMPORTED)
  target_include_directories(torch::headers SYSTEM INTERFACE
    ${FSDP_TORCH_ROOT}/include ${FSDP_TORCH_ROOT}/include/torch/csrc/api/include)
  target_compile_definitions(torch::headers INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)

  add_library(torch::c10 SHARED IMPORTED)
  set_target_properties(torch::c10 PROPERTIES IMPORTED_LOCATION ${FSDP_TORCH_ROOT}/lib/libc10.so)
  add_library(torch::cpu SHARED IMPORTED)
  set_target_properties(torch::cpu PROPERTIES
    IMPORTED_LOCATION ${FSDP_TORCH_ROOT}/lib/libtorch_cpu.so
    INTERFACE_LINK_LIBRARIES "torch::headers;torch::c10")
endif()

if(NOT TARGET fsdp::fmt)
  set(_fmt_only ${CMAKE_CURRENT_BINARY_DIR}/fmt-only)
  file(MAKE_DIRECTORY ${_fmt_only})
  if(NOT EXISTS ${FSDP_TORCH_ROOT}/include/fmt/format.h)
    message(FATAL_ERROR "This LibTorch ships no fmt headers (expected ${FSDP_TORCH_ROOT}/include/fmt). "
                        "hint: use the LibTorch that tools/setup installs")
  endif()
  file(CREATE_LINK ${FSDP_TORCH_ROOT}/include/fmt ${_fmt_only}/fmt SYMBOLIC)
  add_library(fsdp::fmt INTERFACE IMPORTED)
  target_include_directories(fsdp::fmt SYSTEM INTERFACE ${_fmt_only})
endif()
