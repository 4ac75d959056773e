# torch, fmt, nlohmann's JSON, Gloo's headers and CUDA. Sets SHARDWISE_HAS_GLOO, and SHARDWISE_HAS_NVCC where .cu files compile.

find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
find_package(ShardwiseTorch 2.11 REQUIRED MODULE)
if(ShardwiseTorch_VERSION VERSION_GREATER_EQUAL 2.16)
  message(WARNING "torch ${ShardwiseTorch_VERSION} is newer than the versions Shardwise knows (2.11 to 2.15)")
endif()

# fmt is compiled once: in each of our files it takes a quarter of the compiler's time. torch ships its headers, but not the library.
add_library(shardwise_base INTERFACE)
target_link_libraries(shardwise_base INTERFACE shardwise::c10 shardwise_warnings)
target_include_directories(shardwise_base INTERFACE ${PROJECT_SOURCE_DIR})
if(EXISTS "${ShardwiseTorch_INCLUDE_DIR}/fmt/format.h")
  # format.h declares these two templates as instantiated elsewhere.
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/fmt.cpp CONTENT [[
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
}
FMT_END_NAMESPACE
]])
  add_library(shardwise_fmt STATIC ${PROJECT_BINARY_DIR}/generated/fmt.cpp)
  target_link_libraries(shardwise_fmt PRIVATE shardwise::c10)
  set_target_properties(shardwise_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(shardwise_base INTERFACE shardwise_fmt)
else()
  find_package(fmt REQUIRED)
  target_link_libraries(shardwise_base INTERFACE fmt::fmt)
endif()

# Plans of embedding tables are saved as JSON. Headers only.
find_package(nlohmann_json 3.10 QUIET)
if(NOT TARGET nlohmann_json::nlohmann_json)
  include(FetchContent)
  FetchContent_Declare(nlohmann_json
    GIT_REPOSITORY https://github.com/nlohmann/json.git
    GIT_TAG v3.11.3
    GIT_SHALLOW ON
    SYSTEM)
  set(JSON_Install OFF)
  FetchContent_MakeAvailable(nlohmann_json)
endif()

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES shardwise::c10)
check_cxx_source_compiles("
  #include <c10/util/Exception.h>
  int main() { c10::detail::torchCheckFail(\"\", \"\", 0u, std::string()); }" SHARDWISE_SAME_ABI)
unset(CMAKE_REQUIRED_LIBRARIES)
if(NOT SHARDWISE_SAME_ABI)
  message(FATAL_ERROR
    "${CMAKE_CXX_COMPILER} cannot compile and link against ${SHARDWISE_TORCH_ROOT}: it must speak C++20 and the ABI of torch's "
    "wheels (_GLIBCXX_USE_CXX11_ABI=1). Use g++ 11 or newer; the compiler's words are in CMakeFiles/CMakeConfigureLog.yaml.")
endif()

# ProcessGroupGloo's own header includes Gloo's; the code itself lies in libtorch.
find_path(SHARDWISE_GLOO_INCLUDE_DIR gloo/algorithm.h)
if(SHARDWISE_GLOO_INCLUDE_DIR)
  set(SHARDWISE_HAS_GLOO ON)
else()
  set(SHARDWISE_HAS_GLOO OFF)
  message(STATUS "Gloo's headers were not found (Debian: libgloo-dev): C++ programs cannot start under torchrun, "
                 "and the C++ examples are left out")
endif()

set(SHARDWISE_CUDA AUTO CACHE STRING "Compile .cu files: AUTO (where nvcc is found), ON, OFF")
set_property(CACHE SHARDWISE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SHARDWISE_HAS_NVCC OFF)
if(SHARDWISE_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80 90)
    endif()
    enable_language(CUDA)
    set(SHARDWISE_HAS_NVCC ON)
  elseif(NOT SHARDWISE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "SHARDWISE_CUDA is ${SHARDWISE_CUDA} but nvcc was not found. Put it on the PATH or set CUDACXX.")
  endif()
endif()

# NCCL's code lies in torch's CUDA libraries; its header, and those of CUDA that torch's own include, in the packages nvidia-* next to torch.
set(SHARDWISE_HAS_NCCL OFF)
if(SHARDWISE_HAS_NVCC AND ShardwiseTorch_CUDA)
  find_package(CUDAToolkit REQUIRED)
  cmake_path(GET SHARDWISE_TORCH_ROOT PARENT_PATH site_packages)
  string(REGEX MATCH "^[0-9]+" cuda_major "${ShardwiseTorch_CUDA}")
  find_path(SHARDWISE_NCCL_INCLUDE_DIR nccl.h HINTS ${site_packages}/nvidia/nccl/include)
  find_path(SHARDWISE_CUSPARSE_INCLUDE_DIR cusparse.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} ${site_packages}/nvidia/cu${cuda_major}/include)
  if(SHARDWISE_NCCL_INCLUDE_DIR AND SHARDWISE_CUSPARSE_INCLUDE_DIR)
    set(SHARDWISE_HAS_NCCL ON)
  else()
    message(STATUS "nccl.h or cusparse.h was not found (pip: nvidia-nccl-cu${cuda_major}, nvidia-cusparse): C++ programs under "
                   "torchrun send no CUDA tensors")
  endif()
endif()
