# libshardwise: text/, placements/, plans/, pictures/ and wrappers/embedding_plan/ (pure, without torch's headers), kernels/ (raw pointers), runtime/, ops/, wrappers/ and shardwise/. No Python.

file(GLOB pure_sources CONFIGURE_DEPENDS
  text/*.cpp placements/*.cpp plans/*.cpp pictures/*.cpp wrappers/embedding_plan/*.cpp)
add_library(shardwise_pure OBJECT ${pure_sources})
target_link_libraries(shardwise_pure PUBLIC shardwise_base PRIVATE nlohmann_json::nlohmann_json)
set_target_properties(shardwise_pure PROPERTIES LINKER_LANGUAGE CXX)
shardwise_batches(shardwise_pure)

file(GLOB kernel_sources CONFIGURE_DEPENDS kernels/*.cpp)
add_library(shardwise_kernels OBJECT ${kernel_sources})
target_link_libraries(shardwise_kernels PRIVATE shardwise_warnings)
target_include_directories(shardwise_kernels PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_options(shardwise_kernels PRIVATE "$<$<CONFIG:Release,RelWithDebInfo>:-O3>")

file(GLOB library_sources CONFIGURE_DEPENDS
  runtime/*/*.cpp ops/*.cpp ops/*/*.cpp wrappers/*.cpp wrappers/distributed_embedding/*.cpp wrappers/fsdp/*.cpp wrappers/id_transform/*.cpp
  shardwise/*.cpp)
# Compiled alone: it changes with every commit.
configure_file(cmake/version.cpp.in generated/version.cpp @ONLY)
set_source_files_properties(${PROJECT_BINARY_DIR}/generated/version.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
add_library(shardwise SHARED ${library_sources} ${PROJECT_BINARY_DIR}/generated/version.cpp)
add_library(shardwise::shardwise ALIAS shardwise)
target_link_libraries(shardwise PUBLIC shardwise::torch PRIVATE shardwise_pure shardwise_kernels nlohmann_json::nlohmann_json)
target_include_directories(shardwise PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/shardwise>)
target_compile_features(shardwise PUBLIC cxx_std_20)
target_precompile_headers(shardwise PRIVATE cmake/pch.h)
shardwise_batches(shardwise)
# Tests and examples read the library's precompiled header, so its command line must hold nothing of its own.
set_target_properties(shardwise PROPERTIES LINKER_LANGUAGE CXX DEFINE_SYMBOL "")
if(SHARDWISE_HAS_GLOO)
  target_compile_definitions(shardwise PUBLIC SHARDWISE_HAS_GLOO USE_C10D_GLOO)
  target_include_directories(shardwise SYSTEM PUBLIC $<BUILD_INTERFACE:${SHARDWISE_GLOO_INCLUDE_DIR}>)
endif()
if(SHARDWISE_HAS_NCCL)
  target_compile_definitions(shardwise PUBLIC SHARDWISE_HAS_NCCL USE_C10D_NCCL)
  target_include_directories(shardwise SYSTEM PUBLIC $<BUILD_INTERFACE:${CUDAToolkit_INCLUDE_DIRS}>
    $<BUILD_INTERFACE:${SHARDWISE_NCCL_INCLUDE_DIR}> $<BUILD_INTERFACE:${SHARDWISE_CUSPARSE_INCLUDE_DIR}>)
endif()

# Kernels take raw pointers and a stream. Where nvcc is found they compile; where torch knows CUDA they are linked.
file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cu)
if(SHARDWISE_HAS_NVCC AND cuda_sources)
  add_library(shardwise_kernels_cuda OBJECT ${cuda_sources})
  target_include_directories(shardwise_kernels_cuda PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(shardwise_kernels_cuda PRIVATE shardwise_warnings)
  if(ShardwiseTorch_CUDA)
    target_link_libraries(shardwise PRIVATE shardwise_kernels_cuda CUDA::cudart)
    target_compile_definitions(shardwise PUBLIC SHARDWISE_HAS_CUDA)
  endif()
endif()

# A target of ours made from `sources` that shares the library's precompiled header. Object libraries compile with -fPIC as
# the library does; an executable's -fPIE would not fit the header.
function(shardwise_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC shardwise shardwise_base)
  target_precompile_headers(${name} REUSE_FROM shardwise)
  shardwise_batches(${name})
endfunction()
