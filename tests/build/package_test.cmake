# Installs the build into a fresh folder; configures, builds and runs consumer/ with that alone.
set(prefix ${WORK_DIR}/prefix)
set(build ${WORK_DIR}/consumer)
file(REMOVE_RECURSE ${prefix} ${build})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${code}): ${command}\n${text}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

set(flags)
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
run(${CMAKE_COMMAND} --install ${FSDP_BINARY_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${build}
    -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${CXX_COMPILER}
    -D "CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" -D "CMAKE_CXX_FLAGS=${flags}"
    -D CMAKE_EXPORT_COMPILE_COMMANDS=ON)
file(READ ${build}/compile_commands.json commands)
string(FIND "${commands}" "${FSDP_SOURCE_DIR}/include" in_source)
if(NOT in_source EQUAL -1)
  message(FATAL_ERROR "the package points into the source tree: ${FSDP_SOURCE_DIR}/include")
endif()
run(${CMAKE_COMMAND} --build ${build})
run(${build}/consumer)
message("${text}")
