# One program per examples/*.cpp, in build/examples. They start under torchrun, which takes Gloo.

file(GLOB example_sources CONFIGURE_DEPENDS examples/*.cpp)
if(SHARDWISE_HAS_GLOO)
  foreach(source IN LISTS example_sources)
    get_filename_component(name ${source} NAME_WE)
    shardwise_objects(${name}_objects ${source})
    add_executable(example_${name})
    target_link_libraries(example_${name} PRIVATE ${name}_objects)
    set_target_properties(example_${name} PROPERTIES
      OUTPUT_NAME ${name}
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  endforeach()
endif()

# Made on demand: `cmake --build build --target benchmark_planning benchmark_dispatch benchmark_flight_recorder benchmark_row_kernels`.
add_executable(benchmark_planning EXCLUDE_FROM_ALL benchmarks/planning.cpp)
target_link_libraries(benchmark_planning PRIVATE shardwise_all shardwise_base)
add_executable(benchmark_dispatch EXCLUDE_FROM_ALL benchmarks/dispatch.cpp)
target_link_libraries(benchmark_dispatch PRIVATE shardwise_all shardwise_base)
add_executable(benchmark_flight_recorder EXCLUDE_FROM_ALL benchmarks/flight_recorder.cpp)
target_link_libraries(benchmark_flight_recorder PRIVATE shardwise_all shardwise_base)
if(TARGET shardwise_kernels_cuda)
  add_executable(benchmark_row_kernels EXCLUDE_FROM_ALL benchmarks/row_kernels.cu)
  target_include_directories(benchmark_row_kernels PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(benchmark_row_kernels PRIVATE shardwise_kernels_cuda shardwise_warnings)
endif()
