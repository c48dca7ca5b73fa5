# weft_layer(NAME FOLDERS folder... [EXCEPT folder...] DEPENDS target...)
#
# Makes the library weft_NAME with the alias weft::NAME from every source below the folders: *.cc, and *.capnp by way of
# C++ generated into the build tree; with WEFT_CUDA *.cu too. A layer without sources is skipped;
# test `if(TARGET weft::NAME)`.
# It is installed as a component NAME with a separate export set, so that a layer installs without the layers above it.
#
# Headers are included as <weft/FOLDER/FILE.h>: include/weft/ in the build tree holds links to the source folders. Programs
# that a user could write have the property WEFT_INSTALLED_HEADERS, and see only the headers that are installed.
# Generated Cap'n Proto headers are <weft/FOLDER/FILE.capnp.h>; only sources may include them, and they are not installed.

set(weft_include_dir "${PROJECT_BINARY_DIR}/include")
set(weft_generated_dir "${PROJECT_BINARY_DIR}/generated")
file(MAKE_DIRECTORY "${weft_include_dir}/weft" "${weft_generated_dir}/weft")
foreach(_folder rpc rref dist_autograd dist_optim parallel python)
  if(NOT EXISTS "${weft_include_dir}/weft/${_folder}")
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${_folder}" "${weft_include_dir}/weft/${_folder}" SYMBOLIC)
  endif()
endforeach()

# Files below FOLDERS that match PATTERN, without those below EXCEPT.
function(weft_files OUT PATTERN)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "FOLDERS;EXCEPT")
  set(found)
  foreach(folder IN LISTS arg_FOLDERS)
    file(GLOB_RECURSE files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/${PATTERN}")
    list(APPEND found ${files})
  endforeach()
  foreach(folder IN LISTS arg_EXCEPT)
    list(FILTER found EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/${folder}/")
  endforeach()
  set(${OUT} ${found} PARENT_SCOPE)
endfunction()

function(weft_layer NAME)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FOLDERS;EXCEPT;DEPENDS")
  weft_files(sources "*.cc" FOLDERS ${arg_FOLDERS} EXCEPT ${arg_EXCEPT})
  weft_files(schemas "*.capnp" FOLDERS ${arg_FOLDERS} EXCEPT ${arg_EXCEPT})
  if(NOT sources AND NOT schemas)
    return()
  endif()
  foreach(dependency IN LISTS arg_DEPENDS)
    if(NOT TARGET ${dependency})
      message(STATUS "weft: weft::${NAME} is left out, because ${dependency} has no sources")
      return()
    endif()
  endforeach()

  set(target weft_${NAME})
  add_library(${target} ${sources})
  add_library(weft::${NAME} ALIAS ${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set(installed "$<BOOL:$<TARGET_PROPERTY:WEFT_INSTALLED_HEADERS>>")  # of the target that compiles
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:$<IF:${installed},${weft_installed_include_dir},${weft_include_dir}>>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${NAME}
    POSITION_INDEPENDENT_CODE ON
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    UNITY_BUILD_MODE GROUP)
  weft_use_pch(${target} weft_layer_pch)

  if(WEFT_CUDA)
    weft_files(kernels "*.cu" FOLDERS ${arg_FOLDERS} EXCEPT ${arg_EXCEPT})
    if(kernels)
      weft_cuda_sources(${target} ${kernels})
    endif()
  endif()

  # A unity build joins the sources of one folder; Asio's own sources are large enough alone.
  foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" DIRECTORY)
    string(MAKE_C_IDENTIFIER "${folder}" group)
    if(NOT source MATCHES "/asio\\.cc$")
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}")
    endif()
  endforeach()

  if(schemas)
    target_include_directories(${target} SYSTEM PUBLIC
      "$<BUILD_INTERFACE:$<$<NOT:${installed}>:${weft_generated_dir}>>")
  endif()
  foreach(schema IN LISTS schemas)
    file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${schema}")
    set(generated "${weft_generated_dir}/weft/${path}")
    add_custom_command(
      OUTPUT "${generated}.c++" "${generated}.h"
      COMMAND "${WEFT_CAPNP}" compile "-oc++:${weft_generated_dir}/weft"
              "--src-prefix=${PROJECT_SOURCE_DIR}" -I "${PROJECT_SOURCE_DIR}" "${schema}"
      DEPENDS "${schema}"
      COMMENT "Cap'n Proto ${path}"
      VERBATIM)
    target_sources(${target} PRIVATE "${generated}.c++" "${generated}.h")
    set_source_files_properties("${generated}.c++" PROPERTIES
      COMPILE_OPTIONS -w SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()

  weft_install_layer(${NAME} FOLDERS ${arg_FOLDERS} EXCEPT ${arg_EXCEPT})
  set(layers ${arg_DEPENDS})
  list(FILTER layers INCLUDE REGEX "^weft::")
  list(REMOVE_ITEM layers weft::libtorch weft::bundled)
  list(TRANSFORM layers REPLACE "^weft::" "")
  set_property(GLOBAL PROPERTY weft_${NAME}_depends ${layers})
  set_property(GLOBAL APPEND PROPERTY weft_layers ${NAME})
endfunction()
