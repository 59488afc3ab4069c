# Imported targets for LibTorch without find_package(Torch), which with a CUDA wheel demands nvcc for
# plain C++, rewrites architecture flags and links libtorch_cuda into everything.
#   torch::headers  include folders and definitions
#   torch::cpu      libtorch_cpu + libc10
#   fsdp::fmt       the fmt headers that LibTorch ships, alone on an include path of their own, so that
#                   layers without torch cannot see a torch header
# Search order: FSDP_TORCH_ROOT, CMAKE_PREFIX_PATH (a user's own LibTorch: its folder, or the share/cmake
# that torch.utils.cmake_prefix_path names), the project's .venv.
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

# Seating a storage uses interfaces of LibTorch that are not stable between versions.
set(_torch_version_file ${FSDP_TORCH_ROOT}/include/torch/headeronly/version.h)
if(NOT EXISTS ${FSDP_TORCH_ROOT}/lib/libtorch_cpu.so OR NOT EXISTS ${_torch_version_file})
  message(FATAL_ERROR "${FSDP_TORCH_ROOT} is not a LibTorch 2.11 folder: lib/libtorch_cpu.so or "
                      "include/torch/headeronly/version.h is missing. hint: set FSDP_TORCH_ROOT anew")
endif()
file(STRINGS ${_torch_version_file} _torch_version REGEX "define TORCH_VERSION_M(AJOR|INOR) ")
list(TRANSFORM _torch_version REPLACE "[^0-9]" "")
list(JOIN _torch_version "." _torch_version)
if(NOT _torch_version STREQUAL "2.11")
  message(FATAL_ERROR "LibTorch in ${FSDP_TORCH_ROOT} is version ${_torch_version}, expected 2.11. "
                      "hint: tools/setup installs the right one into .venv")
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
                        "hint: use LibTorch 2.11")
  endif()
  file(CREATE_LINK ${FSDP_TORCH_ROOT}/include/fmt ${_fmt_only}/fmt SYMBOLIC)
  add_library(fsdp::fmt INTERFACE IMPORTED)
  target_include_directories(fsdp::fmt SYSTEM INTERFACE ${_fmt_only})
  target_compile_definitions(fsdp::fmt INTERFACE FMT_HEADER_ONLY)
endif()
