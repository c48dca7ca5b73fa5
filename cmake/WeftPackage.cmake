# `cpack -G DEB` in the build tree makes one Debian package of the layers without LibTorch, which has no package of its own
# there, and of the program `weft`. Shared libraries where BUILD_SHARED_LIBS is on.
#
# The SONAME of a library is that of its minor version before 1.0, since a minor version may change the ABI
# (docs/compatibility.md).

set(CPACK_PACKAGE_NAME libweft-dev)
set(CPACK_PACKAGE_CONTACT "weft developers <weft@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "RPC for distributed programs over LibTorch")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ${BUILD_SHARED_LIBS})
# What the headers, the .pc files and the CMake targets of the installed layers need; shlibdeps adds what the libraries link.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libasio-dev, libcapnp-dev, libssl-dev")
if(TARGET weft_observe)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libspdlog-dev, prometheus-cpp-dev")
endif()
set(CPACK_STRIP_FILES ON)

set(CPACK_COMPONENTS_ALL)
foreach(_layer rpc rref flight schedule partition planner testing observe)
  if(TARGET weft_${_layer})
    list(APPEND CPACK_COMPONENTS_ALL ${_layer})
  endif()
endforeach()
if(WEFT_TOOLS)
  list(APPEND CPACK_COMPONENTS_ALL tools)
endif()
include(CPack)
