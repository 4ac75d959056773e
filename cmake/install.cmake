# `cmake --install`: headers, the libraries, find_package(shardwise) and pkg-config. Under pip (scikit-build-core defines SKBUILD): what lies
# inside the package's directory, our libraries beside the extension, torch's libraries in the neighbouring package.

set(shared_libraries shardwise_core)
if(TARGET shardwise)
  list(APPEND shared_libraries shardwise)
endif()
if(SKBUILD)
  set_target_properties(${shared_libraries} shardwise_python PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
  install(TARGETS ${shared_libraries} shardwise_python LIBRARY DESTINATION .)
  install(FILES ${PROJECT_BINARY_DIR}/python/shardwise/_build_facts.py DESTINATION .)
  return()
endif()

include(CMakePackageConfigHelpers)
set(package_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shardwise)

set_target_properties(${shared_libraries} PROPERTIES INSTALL_RPATH "$ORIGIN;${SHARDWISE_TORCH_ROOT}/lib")
install(TARGETS ${shared_libraries} shardwise_threads EXPORT shardwise
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT shardwise NAMESPACE shardwise:: FILE shardwiseTargets.cmake DESTINATION ${package_config_dir})

# Our headers name each other by room ("placements/box.h"), so include/shardwise is on the path of a consumer, too.
if(SHARDWISE_LAYERS)
  install(DIRECTORY kernels text placements plans pictures runtime ops threads wrappers
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardwise FILES_MATCHING PATTERN *.h)
  install(DIRECTORY shardwise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
else()
  install(DIRECTORY text placements plans runtime ops threads
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardwise FILES_MATCHING PATTERN *.h PATTERN ops/embedding EXCLUDE)
  install(FILES shardwise/placements.h shardwise/device_mesh.h shardwise/dtensor.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardwise)
endif()

configure_package_config_file(cmake/shardwiseConfig.cmake.in shardwiseConfig.cmake INSTALL_DESTINATION ${package_config_dir})
write_basic_package_version_file(shardwiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/shardwiseConfig.cmake
  ${PROJECT_BINARY_DIR}/shardwiseConfigVersion.cmake
  cmake/FindShardwiseTorch.cmake
  DESTINATION ${package_config_dir})

# What the targets shardwise and shardwise::torch ask of a program, once more for those that are not built by CMake.
set(shardwise_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH shardwise_pc_to_prefix /${shardwise_pc_dir} /)
string(REGEX REPLACE "/$" "" shardwise_pc_to_prefix "${shardwise_pc_to_prefix}")
get_target_property(shardwise_pc_definitions shardwise_core INTERFACE_COMPILE_DEFINITIONS)
get_target_property(torch_definitions shardwise::torch INTERFACE_COMPILE_DEFINITIONS)
if(shardwise_pc_definitions)
  list(APPEND torch_definitions ${shardwise_pc_definitions})
endif()
list(TRANSFORM torch_definitions PREPEND -D)
list(JOIN torch_definitions " " shardwise_pc_definitions)
# libtorch.so holds no code that a linker could miss: FindShardwiseTorch.cmake says why it stands here.
set(shardwise_pc_libraries "-Wl,--push-state,--no-as-needed,\${torch}/lib/libtorch.so,--pop-state")
if(ShardwiseTorch_CUDA)
  string(PREPEND shardwise_pc_libraries "-lc10_cuda -ltorch_cuda ")
endif()
list(TRANSFORM shared_libraries PREPEND -l OUTPUT_VARIABLE shardwise_pc_own)
list(REVERSE shardwise_pc_own)  # the layers before the core
list(JOIN shardwise_pc_own " " shardwise_pc_own)
configure_file(cmake/shardwise.pc.in shardwise.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/shardwise.pc DESTINATION ${shardwise_pc_dir})
