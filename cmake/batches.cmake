# Files of one folder are compiled together, as a batch: torch's headers and the templates they ask for cost every run of the
# compiler more than most files of ours do. Batches take half of the CPU time of single files, or less.
#
#   library, extension   a batch per folder; names in unnamed namespaces are therefore shared by a folder
#   tests                a batch of folders; each file has a namespace of its own, so names cannot clash
#
# A file that differs from git's HEAD when CMake configures is compiled alone from then on in this build directory: compiling it
# again after an edit takes seconds. -DSHARDWISE_BATCHES=OFF compiles every file alone.
option(SHARDWISE_BATCHES "Compile the files of a folder together" ON)
set(shardwise_batch_size 12)  # files; folders with more make several batches

if(SHARDWISE_BATCHES)
  find_package(Git QUIET)
  set(changed "")
  if(GIT_FOUND)
    foreach(question "diff;--name-only;--relative;HEAD" "ls-files;--others;--exclude-standard")
      execute_process(
        COMMAND ${GIT_EXECUTABLE} ${question}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
        OUTPUT_VARIABLE files
        ERROR_QUIET)
      string(REPLACE "\n" ";" files "${files}")
      list(APPEND changed ${files})
    endforeach()
  endif()
  list(FILTER changed INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM changed PREPEND ${PROJECT_SOURCE_DIR}/)
  set(alone ${SHARDWISE_ALONE} ${changed})
  list(REMOVE_DUPLICATES alone)
  set(SHARDWISE_ALONE "${alone}" CACHE INTERNAL "Files that are compiled alone")
endif()

# Compiles the sources of `target` in batches.
function(shardwise_batches target)
  if(NOT SHARDWISE_BATCHES)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  set(folders "")
  foreach(source IN LISTS sources)
    get_filename_component(source ${source} ABSOLUTE)
    if(NOT source IN_LIST SHARDWISE_ALONE AND
       (source MATCHES "^${PROJECT_SOURCE_DIR}/(tests/[^/]+)/" OR source MATCHES "^${PROJECT_SOURCE_DIR}/(.+)/[^/]+$"))
      string(REPLACE "/" "_" folder ${CMAKE_MATCH_1})
      list(APPEND folders ${folder})
      list(APPEND files_${folder} ${source})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH files_${folder} n_files)
    math(EXPR n_batches "(${n_files} + ${shardwise_batch_size} - 1) / ${shardwise_batch_size}")
    set(n 0)
    foreach(source IN LISTS files_${folder})
      math(EXPR batch "${n} * ${n_batches} / ${n_files}")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${batch})
      math(EXPR n "${n} + 1")
    endforeach()
  endforeach()
endfunction()
