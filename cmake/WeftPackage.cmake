# `cpack` in the build tree makes one Debian package for each layer that the tree has, libweft-LAYER-dev, and `weft` with the
# program of that name. Shared libraries if BUILD_SHARED_LIBS is on. Packages of layers over LibTorch leave LibTorch to the
# user, since Debian has no package of these versions.
#
# The SONAME of a library is that of its minor version before 1.0, since a minor version may change the ABI
# (docs/compatibility.md).

set(CPACK_PACKAGE_NAME weft)
set(CPACK_PACKAGE_CONTACT "weft developers <weft@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Distributed programs and parallel training over LibTorch")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}")  # libraries of the other packages
set(CPACK_STRIP_FILES ON)

set(CPACK_COMPONENTS_ALL)
get_property(_layers GLOBAL PROPERTY weft_layers)
foreach(_layer IN LISTS _layers)
  list(APPEND CPACK_COMPONENTS_ALL ${_layer})
  string(TOUPPER ${_layer} _upper)
  string(REPLACE _ - _name ${_layer})
  set(CPACK_DEBIAN_${_upper}_PACKAGE_NAME libweft-${_name}-dev)
  get_property(CPACK_COMPONENT_${_upper}_DEPENDS GLOBAL PROPERTY weft_${_layer}_depends)
endforeach()
# Dependencies of the headers, the .pc files and the CMake targets; shlibdeps adds those of shared libraries.
set(CPACK_DEBIAN_RPC_PACKAGE_DEPENDS "libasio-dev, libcapnp-dev, libssl-dev")
if(WEFT_ETCD)
  set(CPACK_DEBIAN_JOB_PACKAGE_DEPENDS "libcurl4-openssl-dev")
endif()
set(CPACK_DEBIAN_OBSERVE_PACKAGE_DEPENDS "libspdlog-dev, prometheus-cpp-dev, libcivetweb-dev")
if(WEFT_TOOLS)
  list(APPEND CPACK_COMPONENTS_ALL tools)
  set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME weft)
  set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION devel)
  if(BUILD_SHARED_LIBS)
    set(CPACK_COMPONENT_TOOLS_DEPENDS planner flight rref job)
    if(TARGET weft_observe)
      list(APPEND CPACK_COMPONENT_TOOLS_DEPENDS observe)  # of `weft dash`
    endif()
  endif()
endif()
include(CPack)
