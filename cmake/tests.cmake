# pure_test (placements, random numbers, pictures, the traffic of plans, the planner of embeddings) and kernels_test (those rooms alone: milliseconds), runtime_test
# (everything else in C++), gloo_test, and cuda_kernels_test with its twin that needs no GPU. Without the layers, those of the core.

find_package(GTest QUIET)
if(NOT TARGET GTest::gtest_main)
  include(FetchContent)
  FetchContent_Declare(googletest
    GIT_REPOSITORY https://github.com/google/googletest.git
    GIT_TAG v1.15.2
    GIT_SHALLOW ON
    SYSTEM)
  set(INSTALL_GTEST OFF)
  FetchContent_MakeAvailable(googletest)
endif()

file(GLOB number_tests CONFIGURE_DEPENDS tests/runtime/numbers/*_test.cpp)
set_source_files_properties(${number_tests} PROPERTIES COMPILE_OPTIONS "${number_options};-O3")  # vector code, as in the library
file(GLOB pure_tests CONFIGURE_DEPENDS tests/placements/*_test.cpp tests/plans/traffic_matrix_test.cpp)
if(SHARDWISE_LAYERS)
  file(GLOB pure_layer_tests CONFIGURE_DEPENDS tests/pictures/*_test.cpp tests/wrappers/embedding_plan/*_test.cpp)
  list(APPEND pure_tests ${pure_layer_tests})
  set_source_files_properties(tests/pictures/golden_test.cpp PROPERTIES
    COMPILE_DEFINITIONS "SHARDWISE_GOLDEN_FOLDER=\"${PROJECT_SOURCE_DIR}/tests/pictures/golden\"")
endif()
add_executable(pure_test ${pure_tests} ${number_tests})
target_link_libraries(pure_test PRIVATE
  $<TARGET_NAME_IF_EXISTS:shardwise_pure_layers> shardwise_pure shardwise_numbers nlohmann_json::nlohmann_json GTest::gtest_main)
add_test(NAME pure_test COMMAND pure_test)

if(SHARDWISE_LAYERS)
  file(GLOB kernels_tests CONFIGURE_DEPENDS tests/kernels/*_test.cpp)
  add_executable(kernels_test ${kernels_tests})
  target_link_libraries(kernels_test PRIVATE shardwise_kernels shardwise_base GTest::gtest_main)
  add_test(NAME kernels_test COMMAND kernels_test)
endif()

# What runs on threads in runtime_test and on processes in gloo_test.
set(collective_tests agreement_test.cpp collectives_test.cpp messages_test.cpp order_check_test.cpp
  peer_memory_test.cpp)
list(TRANSFORM collective_tests PREPEND ${PROJECT_SOURCE_DIR}/tests/runtime/comm/)
shardwise_objects(collective_test_objects ${collective_tests})
target_link_libraries(collective_test_objects PUBLIC GTest::gtest)

file(GLOB runtime_tests CONFIGURE_DEPENDS
  tests/support/*.cpp tests/plans/*_test.cpp tests/runtime/*/*_test.cpp tests/ops/*/*_test.cpp tests/threads/*_test.cpp
  tests/wrappers/*_test.cpp tests/wrappers/fsdp/*_test.cpp tests/shardwise/*_test.cpp)
list(REMOVE_ITEM runtime_tests ${collective_tests} ${pure_tests} ${number_tests})
if(NOT SHARDWISE_LAYERS)
  list(FILTER runtime_tests EXCLUDE REGEX "/tests/(ops/embedding|wrappers|shardwise)/|/tests/support/embedding_problem.cpp$")
endif()
shardwise_objects(runtime_test_objects ${runtime_tests})
target_link_libraries(runtime_test_objects PUBLIC GTest::gtest)
add_executable(runtime_test)
target_link_libraries(runtime_test PRIVATE runtime_test_objects collective_test_objects GTest::gtest_main)
add_test(NAME runtime_test COMMAND runtime_test)
set_tests_properties(runtime_test PROPERTIES TIMEOUT 900)

# All of that on a simulated accelerator: its own tests, and comparisons with dense results, which run there in this program. It is one of
# its own, as the process then has a device that torch and autograd know.
file(GLOB accelerator_tests CONFIGURE_DEPENDS tests/accelerator/*.cpp tests/support/accelerator/*.cpp)
if(SHARDWISE_LAYERS)  # they look up rows
  shardwise_objects(accelerator_test_objects ${accelerator_tests})
  target_link_libraries(accelerator_test_objects PUBLIC GTest::gtest)
  add_executable(accelerator_test)
  target_link_libraries(accelerator_test PRIVATE accelerator_test_objects runtime_test_objects GTest::gtest_main)
  add_test(NAME accelerator_test COMMAND accelerator_test
    --gtest_filter=Accelerator*:MatmulTest*Dense*:GatherTest*Dense*)
  set_tests_properties(accelerator_test PROPERTIES TIMEOUT 900)
endif()

# The comparisons with dense results on a GPU. Without one they run on the CPU a second time, so ctest does not know this program.
if(ShardwiseTorch_CUDA)
  shardwise_objects(cuda_test_objects tests/cuda/dense_device.cpp)
  target_link_libraries(cuda_test_objects PUBLIC GTest::gtest)
  add_executable(cuda_test)
  target_link_libraries(cuda_test PRIVATE cuda_test_objects runtime_test_objects GTest::gtest_main)
endif()

# The collectives once more, on three processes over Gloo.
if(SHARDWISE_HAS_GLOO)
  shardwise_objects(gloo_main tests/runtime/comm/gloo_main.cpp)
  target_link_libraries(gloo_main PUBLIC GTest::gtest)
  add_executable(gloo_test)
  target_link_libraries(gloo_test PRIVATE gloo_main collective_test_objects)
  add_test(NAME gloo_test COMMAND ${Python_EXECUTABLE} -m torch.distributed.run
    --standalone --no-python --nproc-per-node 3 $<TARGET_FILE:gloo_test>)
  set_tests_properties(gloo_test PROPERTIES TIMEOUT 300)
endif()

# The kernels for GPUs against those for the CPU: once on a GPU, skipped where none is, and once emulated, with each .cu read by the
# C++ compiler.
if(TARGET shardwise_kernels_cuda)
  find_package(CUDAToolkit REQUIRED)
  add_executable(cuda_kernels_test tests/kernels/cuda_kernels_test.cu)
  target_include_directories(cuda_kernels_test PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(cuda_kernels_test PRIVATE
    shardwise_kernels_cuda shardwise_kernels shardwise_warnings GTest::gtest_main)
  add_test(NAME cuda_kernels_test COMMAND cuda_kernels_test)

  set(emulated_sources tests/kernels/emulated_cuda/emulated_cuda.cpp)
  foreach(source IN LISTS cuda_sources ITEMS ${PROJECT_SOURCE_DIR}/tests/kernels/cuda_kernels_test.cu)
    get_filename_component(name ${source} NAME_WE)
    file(CONFIGURE OUTPUT emulated_cuda/${name}.cpp CONTENT "#include \"emulated_cuda.h\"\n#include \"${source}\"\n")
    list(APPEND emulated_sources ${PROJECT_BINARY_DIR}/emulated_cuda/${name}.cpp)
  endforeach()
  add_executable(emulated_cuda_kernels_test ${emulated_sources})
  target_include_directories(emulated_cuda_kernels_test PRIVATE ${PROJECT_SOURCE_DIR} tests/kernels/emulated_cuda)
  target_include_directories(emulated_cuda_kernels_test SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_options(emulated_cuda_kernels_test PRIVATE -fno-strict-aliasing -Wno-unknown-pragmas)
  target_link_libraries(emulated_cuda_kernels_test PRIVATE shardwise_kernels shardwise_warnings GTest::gtest_main)
  add_test(NAME emulated_cuda_kernels_test COMMAND emulated_cuda_kernels_test)
endif()

# What should be fast is the library. Tests compile in four fifths of the time where they are optimised less.
foreach(target pure_test kernels_test collective_test_objects runtime_test_objects accelerator_test_objects gloo_main)
  if(TARGET ${target})
    target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O1>")
  endif()
endforeach()
