# The version: what pip's build says (scikit-build-core asks setuptools-scm), else what git's last tag v<version> gives by the same
# rule, else what the sdist or the archive of a commit carries.
#
#   at v0.2.0                        0.2.0
#   5 commits after v0.2.0           0.2.1.dev5+g1a2b3c4d5
#   5 commits and no tag             0.1.dev5+g1a2b3c4d5
#   neither git nor a file           0.1.dev0
#
# Sets `version` (all of it) and `numbers` (what CMake compares: 0.2.1).
function(shardwise_version source_dir)
  set(found "${SKBUILD_PROJECT_VERSION_FULL}")

  if(NOT found AND EXISTS "${source_dir}/.git")
    _shardwise_described("${source_dir}" "describe;--tags;--long;--abbrev=9;--match;v[0-9]*" described)
    if(NOT described)
      _shardwise_described("${source_dir}" "rev-list;--count;HEAD" count)
      _shardwise_described("${source_dir}" "rev-parse;--short=9;HEAD" commit)
      if(commit)
        set(found "0.1.dev${count}+g${commit}")
      endif()
    endif()
  elseif(NOT found AND EXISTS "${source_dir}/PKG-INFO")
    file(STRINGS "${source_dir}/PKG-INFO" line REGEX "^Version: " LIMIT_COUNT 1)
    string(REPLACE "Version: " "" found "${line}")
  elseif(NOT found AND EXISTS "${source_dir}/.git_archival.txt")
    file(STRINGS "${source_dir}/.git_archival.txt" line REGEX "^describe-name: v[0-9]" LIMIT_COUNT 1)
    string(REPLACE "describe-name: " "" described "${line}")
    if(described AND NOT described MATCHES "-g[0-9a-f]+$")
      string(APPEND described "-0-g0")  # the tag itself
    endif()
  endif()

  if(NOT found AND described MATCHES "^v([0-9.]*[.])?([0-9]+)-([0-9]+)-g([0-9a-f]+)$")
    if(CMAKE_MATCH_3 EQUAL 0)
      set(found "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
    else()
      math(EXPR next "${CMAKE_MATCH_2} + 1")
      set(found "${CMAKE_MATCH_1}${next}.dev${CMAKE_MATCH_3}+g${CMAKE_MATCH_4}")
    endif()
  endif()
  if(NOT found)
    set(found 0.1.dev0)
  endif()
  string(REGEX MATCH "^[0-9]+([.][0-9]+)*" numbers "${found}")
  set(version "${found}" PARENT_SCOPE)
  set(numbers "${numbers}" PARENT_SCOPE)
endfunction()

# What git answers, without its newline; nothing where it fails.
function(_shardwise_described source_dir question result)
  execute_process(
    COMMAND git -C "${source_dir}" ${question}
    OUTPUT_VARIABLE answer
    OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE status
    ERROR_QUIET)
  if(NOT status EQUAL 0)
    set(answer "")
  endif()
  set(${result} "${answer}" PARENT_SCOPE)
endfunction()
