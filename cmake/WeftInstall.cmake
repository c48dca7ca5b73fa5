# Installation: every layer is a component with its own export set, so that weft::rpc and weft::rref install, and are
# found, without LibTorch on the machine.

include(CMakePackageConfigHelpers)
set(weft_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/weft")

# Links to the headers that are installed, and to no others. Targets with the property WEFT_INSTALLED_HEADERS include weft
# from here (WeftLayer.cmake), so that a build proves that installed headers suffice.
set(weft_installed_include_dir "${PROJECT_BINARY_DIR}/installed/include")
file(REMOVE_RECURSE "${weft_installed_include_dir}")

if(NOT CMAKE_INSTALL_RPATH)
  set(CMAKE_INSTALL_RPATH "$ORIGIN")
endif()
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # LibTorch stays where the user has it

# Last: a layer that was not built is omitted by `cmake --install`, so that neither find_package() nor
# pkg-config finds it. If the layer is the requested component, the installation fails. CMake itself would
# fail at the first missing library.
function(weft_leave_out_unbuilt NAME)
  set(code [[
    if(NOT EXISTS "$<TARGET_FILE:weft_@NAME@>")
      set(libraries "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/@CMAKE_INSTALL_LIBDIR@")
      if(NOT EXISTS "${libraries}/$<TARGET_FILE_NAME:weft_@NAME@>")  # nor installed before
        file(GLOB files "${libraries}/cmake/weft/weft_@NAME@.cmake" "${libraries}/cmake/weft/weft_@NAME@-*.cmake")
        file(REMOVE ${files} "${libraries}/pkgconfig/weft-@NAME@.pc")
      endif()
      if(CMAKE_INSTALL_COMPONENT)
        message(FATAL_ERROR "weft: the component '@NAME@' was not built: cmake --build @PROJECT_BINARY_DIR@ --target weft_@NAME@")
      endif()
      message(STATUS "weft: the component '@NAME@' is left out, because it was not built")
    endif()]])
  string(CONFIGURE "${code}" code @ONLY)
  install(CODE "${code}" COMPONENT ${NAME})
endfunction()

function(weft_install_layer NAME)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FOLDERS;EXCEPT")
  install(TARGETS weft_${NAME} EXPORT weft_${NAME}
          RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT ${NAME} OPTIONAL
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT ${NAME} OPTIONAL
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT ${NAME} OPTIONAL)
  install(EXPORT weft_${NAME} NAMESPACE weft:: FILE weft_${NAME}.cmake
          DESTINATION "${weft_package_dir}" COMPONENT ${NAME})
  weft_files(headers "*.h" FOLDERS ${arg_FOLDERS} EXCEPT ${arg_EXCEPT})
  foreach(header IN LISTS headers)
    file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${header}")
    get_filename_component(folder "${path}" DIRECTORY)
    if(NOT folder MATCHES "(^|/)internal(/|$)")
      install(FILES "${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/weft/${folder}" COMPONENT ${NAME})
      file(MAKE_DIRECTORY "${weft_installed_include_dir}/weft/${folder}")
      file(CREATE_LINK "${header}" "${weft_installed_include_dir}/weft/${path}" SYMBOLIC)
      set_property(GLOBAL APPEND PROPERTY weft_${NAME}_headers "${path}")
    endif()
  endforeach()
endfunction()

# weft-NAME.pc, for builds without CMake: of the layers without LibTorch. Relocatable: paths are relative to the file.
function(weft_install_pkgconfig NAME DESCRIPTION)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "REQUIRES;CFLAGS;LIBS")
  if(NOT TARGET weft_${NAME} OR SKBUILD)  # the wheel has no .pc files of Cap'n Proto
    return()
  endif()
  set(weft_pc_name ${NAME})
  set(weft_pc_description "${DESCRIPTION}")
  set(folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  file(RELATIVE_PATH weft_pc_prefix "/${folder}" "/")
  list(JOIN arg_REQUIRES ", " weft_pc_requires)
  list(JOIN arg_CFLAGS " " weft_pc_cflags)
  list(JOIN arg_LIBS " " weft_pc_libs)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/weft.pc.in" "weft-${NAME}.pc" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/weft-${NAME}.pc" DESTINATION "${folder}" COMPONENT ${NAME})
endfunction()

# The files of the package itself belong to the component `rpc`, which every other needs.
function(weft_install_package)
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/weftConfig.cmake.in" weftConfig.cmake
                                INSTALL_DESTINATION "${weft_package_dir}")
  write_basic_package_version_file(weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/weftConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/weftConfigVersion.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/WeftLibTorch.cmake"
          DESTINATION "${weft_package_dir}" COMPONENT rpc)
endfunction()
