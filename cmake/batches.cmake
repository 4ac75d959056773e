# Files of one folder are compiled together, as a batch: torch's headers and the templates they ask for cost every run of the
# compiler more than most files of ours do. Batches take half of the CPU time of single files, or less.
#
#   library, extension   a batch per folder; names in unnamed namespaces are therefore shared by a folder
#   tests                a batch of folders; each file has a namespace of its own, so names cannot clash
#
# -DSHARDWISE_ALONE=ops/products compiles the files of this folder alone: an edit of one of them then costs seconds, not the batch.
# -DSHARDWISE_BATCHES=OFF compiles every file alone.
option(SHARDWISE_BATCHES "Compile the files of a folder together" ON)
set(SHARDWISE_ALONE "" CACHE STRING "Files and folders, from the root of the sources, that are compiled alone")
set(shardwise_batch_size 12)  # files; folders with more make several batches

set(alone_paths "")
foreach(path IN LISTS SHARDWISE_ALONE)
  cmake_path(ABSOLUTE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR} NORMALIZE)
  if(NOT EXISTS ${path})
    message(FATAL_ERROR "SHARDWISE_ALONE names ${path}, which does not exist. Name files and folders of ${PROJECT_SOURCE_DIR}.")
  endif()
  list(APPEND alone_paths ${path})
endforeach()

# Compiles the sources of `target` in batches of at most shardwise_batch_size files; `ARGV1` gives another size.
function(shardwise_batches target)
  if(NOT SHARDWISE_BATCHES)
    return()
  endif()
  set(batch_size ${shardwise_batch_size})
  if(ARGC GREATER 1)
    set(batch_size ${ARGV1})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  set(folders "")
  foreach(source IN LISTS sources)
    get_filename_component(source ${source} ABSOLUTE)
    if(source MATCHES "^${PROJECT_SOURCE_DIR}/(tests/[^/]+)/" OR source MATCHES "^${PROJECT_SOURCE_DIR}/(.+)/[^/]+$")
      string(REPLACE "/" "_" folder ${CMAKE_MATCH_1})
      list(APPEND folders ${folder})
      list(APPEND files_${folder} ${source})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH files_${folder} n_files)
    math(EXPR n_batches "(${n_files} + ${batch_size} - 1) / ${batch_size}")
    set(n 0)
    foreach(source IN LISTS files_${folder})
      math(EXPR batch "${n} * ${n_batches} / ${n_files}")
      _shardwise_is_alone(${source} is_alone)
      if(NOT is_alone)  # counted all the same, so that the other batches stay as they are
        set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${batch})
      endif()
      math(EXPR n "${n} + 1")
    endforeach()
  endforeach()
endfunction()

function(_shardwise_is_alone source result)
  set(${result} OFF PARENT_SCOPE)
  foreach(path IN LISTS alone_paths)
    cmake_path(IS_PREFIX path ${source} is_inside)
    if(is_inside)
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()
