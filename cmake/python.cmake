# shardwise._C and the package around it, importable from build/python.

set(package_dir ${PROJECT_BINARY_DIR}/python/shardwise)

file(GLOB extension_sources CONFIGURE_DEPENDS python/*.cpp)
if(SHARDWISE_LAYERS)
  file(GLOB layer_bindings CONFIGURE_DEPENDS python/layers/*.cpp)
  list(APPEND extension_sources ${layer_bindings})
endif()
set(binding_names ${extension_sources})
list(FILTER binding_names INCLUDE REGEX "/bind_[^/]*$")
list(TRANSFORM binding_names REPLACE "^.*/bind_(.*)\\.cpp$" "SHARDWISE_BINDING(\\1)\n")
list(JOIN binding_names "" binding_list)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/binding_list.inc CONTENT "${binding_list}")
if(extension_sources)
  Python_add_library(shardwise_python MODULE WITH_SOABI ${extension_sources})
  target_link_libraries(shardwise_python PRIVATE shardwise_all shardwise_base shardwise::torch_python)
  target_include_directories(shardwise_python PRIVATE ${PROJECT_BINARY_DIR}/generated)
  shardwise_batches(shardwise_python 14)  # a batch parses the headers for 15 s
  if(NOT SHARDWISE_BATCHES)  # few batches parse the headers faster than they make and read a precompiled header
    target_precompile_headers(shardwise_python PRIVATE cmake/pch_python.h)
  endif()
  set_target_properties(shardwise_python PROPERTIES
    OUTPUT_NAME _C
    CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${package_dir})
endif()

if(SHARDWISE_HAS_NVCC)
  set(SHARDWISE_BUILT_CUDA "${ShardwiseTorch_CUDA}")
endif()
configure_file(cmake/_build_facts.py.in ${package_dir}/_build_facts.py @ONLY)

# The build tree's package is links to the sources: an edit of a .py file needs no build. Links whose file is gone go too.
file(GLOB_RECURSE package_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/python/shardwise
  python/shardwise/*.py python/shardwise/*.pyi python/shardwise/py.typed
  python/shardwise/*.html python/shardwise/*.css python/shardwise/*.js)
file(GLOB_RECURSE old_links ${package_dir}/*.py ${package_dir}/*.pyi ${package_dir}/*.html ${package_dir}/*.css ${package_dir}/*.js)
foreach(link IN LISTS old_links)
  if(NOT EXISTS ${link})
    file(REMOVE ${link})
  endif()
endforeach()
foreach(file IN LISTS package_files)
  get_filename_component(directory ${package_dir}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${directory})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/python/shardwise/${file} ${package_dir}/${file} SYMBOLIC)
endforeach()
