# Configures subproject/, a project that contains the source tree. If BUILDS is set, also builds and
# runs it.
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${code}): ${command}\n${text}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/subproject -B ${WORK_DIR}
    -D FSDP_SOURCE_DIR=${FSDP_SOURCE_DIR} -D FSDP_TORCH_ROOT=${TORCH_ROOT}
    -D CMAKE_CXX_COMPILER=${CXX_COMPILER} -D CMAKE_BUILD_TYPE=Release)
# A project that uses the library must build none of the library's examples, programs and tests.
run(${CMAKE_COMMAND} --build ${WORK_DIR} --target help)
if(text MATCHES "(fsdp-run|bert_qa|_tests):")
  message(FATAL_ERROR "the subproject has a target that is not the library's: ${CMAKE_MATCH_0}\n${text}")
endif()
if(NOT BUILDS)
  return()
endif()
run(${CMAKE_COMMAND} --build ${WORK_DIR} --target hello_unit)
run(${WORK_DIR}/hello_unit --device cpu)
if(NOT text MATCHES "loss")
  message(FATAL_ERROR "hello_unit prints no loss:\n${text}")
endif()
