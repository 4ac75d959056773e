# `cmake --install`: headers, the library and find_package(shardwise). Under pip (scikit-build-core defines SKBUILD): what lies
# inside the package's directory, libshardwise beside the extension, torch's libraries in the neighbouring package.

if(SKBUILD)
  set_target_properties(shardwise shardwise_python PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
  install(TARGETS shardwise shardwise_python LIBRARY DESTINATION .)
  install(FILES ${PROJECT_BINARY_DIR}/python/shardwise/_build_facts.py DESTINATION .)
  return()
endif()

include(CMakePackageConfigHelpers)
set(package_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shardwise)

set_target_properties(shardwise PROPERTIES INSTALL_RPATH "${SHARDWISE_TORCH_ROOT}/lib")
install(TARGETS shardwise EXPORT shardwise LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT shardwise NAMESPACE shardwise:: FILE shardwiseTargets.cmake DESTINATION ${package_config_dir})

# Our headers name each other by room ("placements/box.h"), so include/shardwise is on the path of a consumer, too.
install(DIRECTORY kernels text placements plans pictures runtime ops wrappers
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardwise FILES_MATCHING PATTERN *.h)
install(FILES shardwise/shardwise.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardwise)

configure_package_config_file(cmake/shardwiseConfig.cmake.in shardwiseConfig.cmake INSTALL_DESTINATION ${package_config_dir})
write_basic_package_version_file(shardwiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/shardwiseConfig.cmake
  ${PROJECT_BINARY_DIR}/shardwiseConfigVersion.cmake
  cmake/FindShardwiseTorch.cmake
  DESTINATION ${package_config_dir})
