# Installs a package for find_package(fsdp), with the target fsdp::fsdp.
include(CMakePackageConfigHelpers)
get_property(_layers GLOBAL PROPERTY FSDP_LAYERS)
install(TARGETS fsdp ${_layers} EXPORT fsdp-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Programs open the library by its name and do not link it, so a program for the CPU does not need it.
if(TARGET fsdp_cuda)
  install(TARGETS fsdp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT fsdp_cuda)
endif()
install(EXPORT fsdp-targets NAMESPACE fsdp:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fsdp-config.cmake.in
  ${PROJECT_BINARY_DIR}/fsdp-config.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fsdp-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fsdp-config.cmake ${PROJECT_BINARY_DIR}/fsdp-config-version.cmake
  ${PROJECT_SOURCE_DIR}/cmake/Torch.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
