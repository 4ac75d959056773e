# The core, which a DTensor needs, and the layers above it. No Python.
#
#   libshardwise_core      text/, placements/, plans/ (pure: without torch's headers), runtime/ (its numbers/: raw pointers), ops/ without lookups
#   libshardwise           kernels/ (raw pointers), ops/embedding/, pictures/, wrappers/ and shardwise/
#   libshardwise_threads   threads/: ranks as threads, for tests and notebooks. A static library
#
# -DSHARDWISE_LAYERS=OFF builds the core and the threads alone. scripts/include_directions.py says which headers of the core the layers include.
option(SHARDWISE_LAYERS "Build the layers above the core" ON)
if(SHARDWISE_LAYERS)
  set(shardwise_has_layers True)
else()
  set(shardwise_has_layers False)
endif()

# A library of ours that shares the core's precompiled header.
function(shardwise_library name kind)
  add_library(${name} ${kind} ${ARGN})
  string(REPLACE "shardwise_" "" short_name ${name})
  add_library(shardwise::${short_name} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${short_name} LINKER_LANGUAGE CXX)
  # Nothing of its own stands in its command line, because all targets read one precompiled header.
  set_target_properties(${name} PROPERTIES DEFINE_SYMBOL "")
  if(name STREQUAL "shardwise_core")
    target_precompile_headers(${name} PRIVATE cmake/pch.h)
  else()
    target_precompile_headers(${name} REUSE_FROM shardwise_core)
  endif()
  shardwise_batches(${name})
endfunction()

# Files without torch's headers: objects that pure_test links without torch.
function(shardwise_pure_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC shardwise_base PRIVATE nlohmann_json::nlohmann_json)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  shardwise_batches(${name})
endfunction()

# Loops over raw memory. `options`: more options for the compiler.
function(shardwise_kernel_objects name sources options)
  add_library(${name} OBJECT ${sources})
  target_link_libraries(${name} PRIVATE shardwise_warnings)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE "$<$<CONFIG:Release,RelWithDebInfo>:-O3>" ${options})
endfunction()

file(GLOB pure_sources CONFIGURE_DEPENDS text/*.cpp placements/*.cpp plans/*.cpp)
shardwise_pure_objects(shardwise_pure ${pure_sources})

# -ffp-contract=off: numbers have the same bits on every CPU. -fno-math-errno: square roots become vector code.
file(GLOB number_sources CONFIGURE_DEPENDS runtime/numbers/*.cpp)
set(number_options -ffp-contract=off -fno-math-errno)
shardwise_kernel_objects(shardwise_numbers "${number_sources}" "${number_options}")

set(core_api shardwise/device_mesh.cpp shardwise/dtensor.cpp)
file(GLOB core_sources CONFIGURE_DEPENDS runtime/*/*.cpp ops/*.cpp ops/*/*.cpp)
list(FILTER core_sources EXCLUDE REGEX "/ops/embedding/|/runtime/numbers/")
# Compiled alone: it changes with every commit.
configure_file(cmake/version.cpp.in generated/version.cpp @ONLY)
set_source_files_properties(${PROJECT_BINARY_DIR}/generated/version.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
shardwise_library(shardwise_core SHARED ${core_sources} ${core_api} ${PROJECT_BINARY_DIR}/generated/version.cpp)
target_link_libraries(shardwise_core PUBLIC shardwise::torch PRIVATE shardwise_pure shardwise_numbers nlohmann_json::nlohmann_json)
target_include_directories(shardwise_core PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/shardwise>)
target_compile_features(shardwise_core PUBLIC cxx_std_20)
if(SHARDWISE_HAS_GLOO)
  target_compile_definitions(shardwise_core PUBLIC SHARDWISE_HAS_GLOO USE_C10D_GLOO)
  target_include_directories(shardwise_core SYSTEM PUBLIC $<BUILD_INTERFACE:${SHARDWISE_GLOO_INCLUDE_DIR}>)
endif()
if(SHARDWISE_HAS_NCCL)
  target_compile_definitions(shardwise_core PUBLIC SHARDWISE_HAS_NCCL USE_C10D_NCCL)
  target_include_directories(shardwise_core SYSTEM PUBLIC "$<BUILD_INTERFACE:${CUDAToolkit_INCLUDE_DIRS}>"
    $<BUILD_INTERFACE:${SHARDWISE_NCCL_INCLUDE_DIR}> $<BUILD_INTERFACE:${SHARDWISE_CUSPARSE_INCLUDE_DIR}>)
endif()

file(GLOB thread_sources CONFIGURE_DEPENDS threads/*.cpp)
shardwise_library(shardwise_threads STATIC ${thread_sources})
target_link_libraries(shardwise_threads PUBLIC shardwise_core PRIVATE $<BUILD_INTERFACE:shardwise_base>)

if(SHARDWISE_LAYERS)
  file(GLOB pure_layer_sources CONFIGURE_DEPENDS pictures/*.cpp wrappers/embedding_plan/*.cpp)
  shardwise_pure_objects(shardwise_pure_layers ${pure_layer_sources})

  file(GLOB kernel_sources CONFIGURE_DEPENDS kernels/*.cpp)
  shardwise_kernel_objects(shardwise_kernels "${kernel_sources}" "")

  file(GLOB layer_sources CONFIGURE_DEPENDS ops/embedding/*.cpp wrappers/*.cpp wrappers/*/*.cpp shardwise/*.cpp)
  list(FILTER layer_sources EXCLUDE REGEX "/wrappers/embedding_plan/|/shardwise/(device_mesh|dtensor).cpp$")
  shardwise_library(shardwise SHARED ${layer_sources})
  target_link_libraries(shardwise PUBLIC shardwise_core PRIVATE shardwise_pure_layers shardwise_kernels nlohmann_json::nlohmann_json)

  # Kernels take raw pointers and a stream. Where nvcc is found they compile; where torch knows CUDA they are linked.
  file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cu)
  if(SHARDWISE_HAS_NVCC AND cuda_sources)
    add_library(shardwise_kernels_cuda OBJECT ${cuda_sources})
    target_include_directories(shardwise_kernels_cuda PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(shardwise_kernels_cuda PRIVATE shardwise_warnings)
    if(ShardwiseTorch_CUDA)
      target_link_libraries(shardwise PRIVATE shardwise_kernels_cuda CUDA::cudart)
      target_compile_definitions(shardwise_core PUBLIC SHARDWISE_HAS_CUDA)
    endif()
  endif()
endif()

# Everything that this build has.
add_library(shardwise_all INTERFACE)
target_link_libraries(shardwise_all INTERFACE shardwise_threads $<TARGET_NAME_IF_EXISTS:shardwise> shardwise_core)

# A target of ours made from `sources` that shares the precompiled header. Object libraries compile with -fPIC as the library does; an executable's
# -fPIE would not fit the header.
function(shardwise_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC shardwise_all shardwise_base)
  target_precompile_headers(${name} REUSE_FROM shardwise_core)
  shardwise_batches(${name})
endfunction()
