# Finds libtorch inside the Python package torch, for our own build and for programs that find_package(shardwise).
#
# Looks at SHARDWISE_TORCH_ROOT (the directory of the package: it holds include/ and lib/), else asks Python_EXECUTABLE or
# the python3 on the PATH where its torch lies. The package's own CMake files are not used: they look for MKL, CUDA and
# protobuf, which a program linked against the shared libraries does not need.
#
# Targets:   shardwise::c10           headers and libc10; no tensors
#            shardwise::torch         all of libtorch without Python
#            shardwise::torch_python  what an extension module adds
# Variables: SHARDWISE_TORCH_ROOT, ShardwiseTorch_INCLUDE_DIR,
#            ShardwiseTorch_VERSION (2.13.0), ShardwiseTorch_CUDA (13.0, or empty)

if(NOT SHARDWISE_TORCH_ROOT)
  if(NOT Python_EXECUTABLE)
    find_program(Python_EXECUTABLE NAMES python3 python)
  endif()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0], end='')"
    OUTPUT_VARIABLE _shardwise_torch_root
    ERROR_QUIET)
  set(SHARDWISE_TORCH_ROOT "${_shardwise_torch_root}" CACHE PATH "Directory of the Python package torch" FORCE)
endif()

set(ShardwiseTorch_VERSION "")
set(ShardwiseTorch_CUDA "")
if(EXISTS "${SHARDWISE_TORCH_ROOT}/version.py")
  file(READ "${SHARDWISE_TORCH_ROOT}/version.py" _shardwise_torch_version)
  if(_shardwise_torch_version MATCHES "__version__ = '([0-9.]+)")
    set(ShardwiseTorch_VERSION "${CMAKE_MATCH_1}")
  endif()
  if(_shardwise_torch_version MATCHES "cuda[^=\n]*= '([0-9.]+)'")
    set(ShardwiseTorch_CUDA "${CMAKE_MATCH_1}")
  endif()
endif()

# conda-forge's libtorch has the headers in the include/ of the environment, wheels have them inside the package.
find_path(ShardwiseTorch_INCLUDE_DIR c10/util/Exception.h
  PATHS "${SHARDWISE_TORCH_ROOT}/include" "${SHARDWISE_TORCH_ROOT}/../../../../include"
  NO_CACHE NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)

if(SHARDWISE_TORCH_ROOT)
  set(_shardwise_reason "SHARDWISE_TORCH_ROOT is ${SHARDWISE_TORCH_ROOT}, which is no directory of the Python package torch: it lacks version.py or its headers.")
else()
  set(_shardwise_reason "${Python_EXECUTABLE} has no torch. Pass -DPython_EXECUTABLE=<a python that has it> or -DSHARDWISE_TORCH_ROOT=<.../torch>")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  ShardwiseTorch
  REQUIRED_VARS SHARDWISE_TORCH_ROOT ShardwiseTorch_VERSION ShardwiseTorch_INCLUDE_DIR
  VERSION_VAR ShardwiseTorch_VERSION
  REASON_FAILURE_MESSAGE "${_shardwise_reason}")

if(ShardwiseTorch_FOUND AND NOT TARGET shardwise::torch)
  foreach(name c10 torch_cpu torch_python)
    add_library(shardwise::lib${name} SHARED IMPORTED)
    set_target_properties(shardwise::lib${name} PROPERTIES
      IMPORTED_LOCATION "${SHARDWISE_TORCH_ROOT}/lib/lib${name}.so")
  endforeach()

  add_library(shardwise::c10 INTERFACE IMPORTED)
  set_target_properties(shardwise::c10 PROPERTIES
    INTERFACE_LINK_LIBRARIES shardwise::libc10
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${ShardwiseTorch_INCLUDE_DIR}"
    INTERFACE_INCLUDE_DIRECTORIES "${ShardwiseTorch_INCLUDE_DIR}")

  # libtorch.so holds no code: it names the libraries (libtorch_cuda too) whose loading registers their kernels.
  add_library(shardwise::torch INTERFACE IMPORTED)
  set_target_properties(shardwise::torch PROPERTIES
    INTERFACE_LINK_LIBRARIES
      "shardwise::libtorch_cpu;shardwise::c10;-Wl,--push-state,--no-as-needed,${SHARDWISE_TORCH_ROOT}/lib/libtorch.so,--pop-state"
    INTERFACE_COMPILE_DEFINITIONS USE_DISTRIBUTED
    INTERFACE_INCLUDE_DIRECTORIES "${ShardwiseTorch_INCLUDE_DIR}/torch/csrc/api/include")

  # Named only by what uses them: without our kernels for GPUs the library runs beside a torch for CPUs, too.
  if(ShardwiseTorch_CUDA)
    foreach(name c10_cuda torch_cuda)
      target_link_libraries(shardwise::torch INTERFACE
        "-Wl,--push-state,--as-needed,${SHARDWISE_TORCH_ROOT}/lib/lib${name}.so,--pop-state")
    endforeach()
  endif()

  add_library(shardwise::torch_python INTERFACE IMPORTED)
  set_target_properties(shardwise::torch_python PROPERTIES
    INTERFACE_LINK_LIBRARIES "shardwise::libtorch_python;shardwise::torch")
endif()
