# What is the same for every target of ours: language, warnings, speed of building.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_LINK_DEPENDS_NO_SHARED ON)  # a changed libshardwise.so does not link the tests again

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# Warnings are errors for GCC 12, with which the tests are built. Other compilers know other warnings: GCC 13 sees dangling references where an
# ArrayRef is returned by value. pip's builds go on for the same reason. torch's headers are SYSTEM and silent.
if(NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR AND NOT SKBUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
   CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
endif()
add_library(shardwise_warnings INTERFACE)
target_compile_options(shardwise_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wnon-virtual-dtor;-Woverloaded-virtual;-Wundef;-Wvla>"
  "$<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>"  # {.shape = sizes} means the other options' defaults
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms of GCC 12 wherever c10::SmallVector or std::string is inlined into our code (GCC bug 105651 is one).
  target_compile_options(shardwise_warnings INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;-Wno-stringop-overflow;-Wno-array-bounds;-Wno-restrict>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-maybe-uninitialized>")  # in CUB, at -O1
endif()

# GCC collects garbage from 128 MB on, which takes a tenth of a file's time. A file that includes torch needs 1 GB with and without.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1048576>")
endif()

# ccache must be told that a precompiled header may stand in for the headers it was made from, and GCC that the
# preprocessed text which ccache hashes names the header.
find_program(SHARDWISE_CCACHE ccache)
if(SHARDWISE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${SHARDWISE_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>")
  endif()
endif()

include(CheckLinkerFlag)
# A call within a library goes to the function itself, not through a table that other libraries could change: a cold call of an operator then
# touches fewer lines of memory.
check_linker_flag(CXX -Wl,-Bsymbolic-functions SHARDWISE_HAS_SYMBOLIC_FUNCTIONS)
if(SHARDWISE_HAS_SYMBOLIC_FUNCTIONS)
  add_link_options(-Wl,-Bsymbolic-functions)
endif()
foreach(linker mold lld)
  if(NOT SHARDWISE_LINKER)
    check_linker_flag(CXX -fuse-ld=${linker} SHARDWISE_HAS_${linker})
    if(SHARDWISE_HAS_${linker})
      set(SHARDWISE_LINKER ${linker})
      add_link_options(-fuse-ld=${linker})
    endif()
  endif()
endforeach()
