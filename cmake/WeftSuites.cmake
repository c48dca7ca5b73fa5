# weft_discover_suites(TARGET PREFIX prefix PROPERTIES property value...)
#
# As gtest_discover_tests(), with one CTest test for each suite instead of each case: some 600 processes instead of 4,000 in
# the preset ci, and a program that links LibTorch takes about 0.3 s to start. CTest lists the suites when it runs.
function(weft_discover_suites TARGET)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PREFIX" "PROPERTIES")
  set(script "${CMAKE_CURRENT_BINARY_DIR}/${TARGET}_suites.cmake")
  file(GENERATE OUTPUT "${script}" CONTENT
"set(program \"$<TARGET_FILE:${TARGET}>\")
set(prefix \"${arg_PREFIX}\")
set(properties ${arg_PROPERTIES})
include(\"${CMAKE_CURRENT_FUNCTION_LIST_DIR}/WeftAddSuites.cmake\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${script}")
endfunction()
