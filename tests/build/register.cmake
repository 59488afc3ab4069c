# Builds a separate project against the installed package and runs it.
add_test(NAME package COMMAND ${CMAKE_COMMAND}
  -D FSDP_SOURCE_DIR=${PROJECT_SOURCE_DIR}
  -D FSDP_BINARY_DIR=${PROJECT_BINARY_DIR}
  -D WORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/package
  -D SANITIZE=${FSDP_SANITIZE}
  -D NM=${CMAKE_NM}
  -D HAS_CUDA_LIBRARY=$<TARGET_EXISTS:fsdp_cuda>
  -D CUDART=${FSDP_CUDART}
  -D FAKE_DRIVER=$<TARGET_FILE_DIR:fake_driver_libcuda_so_1>
  -D CXX_COMPILER=${CMAKE_CXX_COMPILER}
  -D LAUNCHER=$<$<BOOL:${FSDP_CCACHE}>:${FSDP_CCACHE}>
  -P ${CMAKE_CURRENT_LIST_DIR}/package_test.cmake)
set_tests_properties(package PROPERTIES TIMEOUT 600)

# Builds the source tree as a part of another project that links fsdp::fsdp. tools/test only
# configures it. tools/test sim also builds hello_unit in this way and runs it.
foreach(name subproject subproject_long)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND}
    -D FSDP_SOURCE_DIR=${PROJECT_SOURCE_DIR}
    -D WORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/${name}
    -D TORCH_ROOT=${FSDP_TORCH_ROOT}
    -D CXX_COMPILER=${CMAKE_CXX_COMPILER}
    -D BUILDS=$<STREQUAL:${name},subproject_long>
    -P ${CMAKE_CURRENT_LIST_DIR}/subproject_test.cmake)
endforeach()
set_tests_properties(subproject PROPERTIES TIMEOUT 120)
set_tests_properties(subproject_long PROPERTIES TIMEOUT 3600 LABELS sim_long)

add_test(NAME tools_check COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_test.sh
  ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/check)
add_test(NAME torch_versions COMMAND ${CMAKE_CURRENT_LIST_DIR}/torch_versions_test.sh
  ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/torch_versions)
add_test(NAME cuda_toolkit COMMAND ${CMAKE_CURRENT_LIST_DIR}/cuda_toolkit_test.sh
  ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/cuda_toolkit)
add_test(NAME setup_gpu COMMAND ${CMAKE_CURRENT_LIST_DIR}/setup_gpu_test.sh
  ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/setup_gpu)
set_tests_properties(tools_check torch_versions cuda_toolkit setup_gpu PROPERTIES TIMEOUT 120)

add_test(NAME gloo_symbols COMMAND ${CMAKE_CURRENT_LIST_DIR}/gloo_symbols_test.sh
  ${CMAKE_NM} $<TARGET_FILE:fsdp_libtorch>)

# Compiles misuse that must be refused. The test reads messages of GCC, so it needs GCC.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_library(unit_refusals OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/unit_refusals.cpp)
  target_link_libraries(unit_refusals PRIVATE fsdp_engine test_main)
  set_target_properties(unit_refusals PROPERTIES EXPORT_COMPILE_COMMANDS ON)
  fsdp_torch_test_target(unit_refusals)
  add_test(NAME unit_refusals COMMAND python3 ${CMAKE_CURRENT_LIST_DIR}/unit_refusals_test.py
    ${PROJECT_BINARY_DIR}/compile_commands.json ${CMAKE_CURRENT_LIST_DIR}/unit_refusals.cpp)
  set_tests_properties(unit_refusals PROPERTIES TIMEOUT 120)
endif()

# Tests of the GPU part need its compiler, but no GPU. If the compiler is missing, they are skipped
# with the reason.
set(FSDP_CUDA_TESTS cuda cuda_resources cuda_without_toolkit doctor_simulated gpu gpu_long mutants
    kernels_simulated shard_simulated optim_simulated engine_simulated closing_simulated bits_simulated)
if(FSDP_NVCC)
  fsdp_tests(cuda LIBRARIES fsdp_runtime)  # the library as it ships
  add_dependencies(cuda_tests fsdp_cuda)
  target_compile_definitions(cuda_tests PRIVATE CUDA_LIBRARY="$<TARGET_FILE:fsdp_cuda>"
                                                FSDP_VERSION="${PROJECT_VERSION}")
  add_executable(cuda_occupancy ${CMAKE_CURRENT_LIST_DIR}/cuda_occupancy.cpp)
  target_include_directories(cuda_occupancy SYSTEM PRIVATE ${FSDP_CUDA_ROOT}/include)
  target_compile_options(cuda_occupancy PRIVATE ${FSDP_TEST_FLAGS})
  cmake_path(GET FSDP_NVCC PARENT_PATH _nvcc_folder)
  file(GLOB _pypi_folders ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu*/bin)
  find_program(FSDP_CUOBJDUMP cuobjdump HINTS ${_nvcc_folder} ${_pypi_folders})
  cmake_path(GET FSDP_CUOBJDUMP PARENT_PATH _cuobjdump_folder)
  add_test(NAME cuda_resources COMMAND python3 ${CMAKE_CURRENT_LIST_DIR}/cuda_resources.py
    --tools "${_cuobjdump_folder}" --nvcc ${FSDP_CUDA_VERSION} --occupancy $<TARGET_FILE:cuda_occupancy>
    $<TARGET_FILE:fsdp_cuda> ${CMAKE_CURRENT_LIST_DIR}/cuda_resources.txt)
  add_test(NAME cuda_without_toolkit COMMAND ${CMAKE_CURRENT_LIST_DIR}/cuda_without_toolkit_test.sh
    ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/cuda_without_toolkit)
  set_tests_properties(cuda_resources cuda_without_toolkit PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1200)
  set_tests_properties(cuda_without_toolkit PROPERTIES LABELS sim_long RUN_SERIAL ON)
else()
  foreach(name IN LISTS FSDP_CUDA_TESTS)
    add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/skip_test.sh "${FSDP_CUDA_WHY}")
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
endif()

# If tools/setup --peers was run, tests compute the records again, and transformers reads a folder
# that bert_qa wrote.
if(EXISTS ${PROJECT_SOURCE_DIR}/.venv-peers/bin/python)
  add_test(NAME peers_records COMMAND ${PROJECT_SOURCE_DIR}/.venv-peers/bin/python
    ${PROJECT_SOURCE_DIR}/benchmarks/peers/check_records.py)
  add_test(NAME peers_export COMMAND ${CMAKE_CURRENT_LIST_DIR}/export_test.sh
    ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR} ${CMAKE_CURRENT_BINARY_DIR}/export)
  set_tests_properties(peers_records peers_export PROPERTIES TIMEOUT 600)
endif()
