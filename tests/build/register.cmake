# A project of its own, built against the installed package and run.
add_test(NAME package COMMAND ${CMAKE_COMMAND}
  -D FSDP_SOURCE_DIR=${PROJECT_SOURCE_DIR}
  -D FSDP_BINARY_DIR=${PROJECT_BINARY_DIR}
  -D WORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/package
  -D SANITIZE=${FSDP_SANITIZE}
  -D NM=${CMAKE_NM}
  -D CXX_COMPILER=${CMAKE_CXX_COMPILER}
  -D LAUNCHER=$<$<BOOL:${FSDP_CCACHE}>:${FSDP_CCACHE}>
  -P ${CMAKE_CURRENT_LIST_DIR}/package_test.cmake)
set_tests_properties(package PROPERTIES TIMEOUT 600)

add_test(NAME tools_check COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_test.sh
  ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/check)
add_test(NAME torch_versions COMMAND ${CMAKE_CURRENT_LIST_DIR}/torch_versions_test.sh
  ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/torch_versions)
add_test(NAME cuda_toolkit COMMAND ${CMAKE_CURRENT_LIST_DIR}/cuda_toolkit_test.sh
  ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/cuda_toolkit)
set_tests_properties(tools_check torch_versions cuda_toolkit PROPERTIES TIMEOUT 120)

# Tests of the GPU's part need its compiler, and no GPU. Without it they say so.
set(FSDP_CUDA_TESTS kernels_simulated)
if(NOT FSDP_NVCC)
  foreach(name IN LISTS FSDP_CUDA_TESTS)
    add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/skip_test.sh "${FSDP_CUDA_WHY}")
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
endif()

# Where tools/setup --peers was run: the records that the tests compare with are computed anew, and
# transformers reads a folder that bert_qa wrote.
if(EXISTS ${PROJECT_SOURCE_DIR}/.venv-peers/bin/python)
  add_test(NAME peers_records COMMAND ${PROJECT_SOURCE_DIR}/.venv-peers/bin/python
    ${PROJECT_SOURCE_DIR}/benchmarks/peers/check_records.py)
  add_test(NAME peers_export COMMAND ${CMAKE_CURRENT_LIST_DIR}/export_test.sh
    ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR} ${CMAKE_CURRENT_BINARY_DIR}/export)
  set_tests_properties(peers_records peers_export PROPERTIES TIMEOUT 600)
endif()
