# Builds the program of open_cuda_test.cpp, which prints the GPUs that it finds. Also builds
# libraries that look like a driver, a LibTorch and libfsdp_cuda.so, each in its own folder.
set(_here ${CMAKE_CURRENT_LIST_DIR})
set(_machines ${CMAKE_CURRENT_BINARY_DIR}/open_cuda)
add_executable(print_gpus ${_here}/print_gpus.cpp)
target_include_directories(print_gpus PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(print_gpus PRIVATE ${FSDP_TEST_FLAGS})
target_link_libraries(print_gpus PRIVATE fsdp_runtime ${CMAKE_DL_LIBS})
add_dependencies(runtime_tests print_gpus)

# fsdp_fake_library(FOLDER NAME source [definition…])
function(fsdp_fake_library folder name source)
  string(MAKE_C_IDENTIFIER fake_${folder}_${name} target)
  add_library(${target} SHARED ${_here}/${source})
  add_dependencies(${target} fsdp_cuda_build)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
  target_compile_options(${target} PRIVATE ${FSDP_TEST_FLAGS})
  target_compile_definitions(${target} PRIVATE ${ARGN})
  target_link_libraries(${target} PRIVATE fsdp_runtime)
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME ${name}
                        LIBRARY_OUTPUT_DIRECTORY ${_machines}/${folder})
  add_dependencies(runtime_tests ${target})
endfunction()
fsdp_fake_library(driver libcuda.so.1 empty_library.cpp)
fsdp_fake_library(torch_cpu libc10.so empty_library.cpp)
fsdp_fake_library(torch libc10.so empty_library.cpp)
fsdp_fake_library(torch libtorch_cuda.so empty_library.cpp)
fsdp_fake_library(other_build/${CMAKE_INSTALL_LIBDIR} libfsdp_cuda.so fake_library.cpp FAKE_BUILD="another")
fsdp_fake_library(not_ours/${CMAKE_INSTALL_LIBDIR} libfsdp_cuda.so empty_library.cpp)
fsdp_fake_library(two_gpus/${CMAKE_INSTALL_LIBDIR} libfsdp_cuda.so fake_library.cpp)

if(TARGET fsdp_cuda)
  add_dependencies(runtime_tests fsdp_cuda)
endif()
# A sanitizer opens libraries on behalf of a program. The loader then ignores the program's rpath.
set(_instead_of_rpath)
if(FSDP_SANITIZE)
  set(_instead_of_rpath :${PROJECT_BINARY_DIR}/lib)
endif()
target_compile_definitions(runtime_tests PRIVATE INSTEAD_OF_RPATH="${_instead_of_rpath}"
  PRINT_GPUS="$<TARGET_FILE:print_gpus>" FAKE_MACHINES="${_machines}"
  FSDP_LIBRARY_DIR="${CMAKE_INSTALL_LIBDIR}" HAS_CUDA_LIBRARY=$<TARGET_EXISTS:fsdp_cuda>)
