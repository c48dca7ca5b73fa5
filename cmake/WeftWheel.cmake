# The wheel (pyproject.toml): what it has in addition to an installation, and where. weft/bundled/ in it has the libraries
# that weft needs, so that find_package(weft) there needs no packages of the system.

set(CMAKE_INSTALL_BINDIR "${SKBUILD_SCRIPTS_DIR}")
set(CMAKE_SKIP_INSTALL_RPATH ON)
# No path of this machine is in what is built: without the second, g++ names headers of the system by their real paths.
foreach(folder IN ITEMS "${WEFT_LIBTORCH}" "$ENV{WEFT_LIBTORCH}" "${PROJECT_SOURCE_DIR}")
  if(folder)
    add_compile_options("-ffile-prefix-map=${folder}/=")
  endif()
endforeach()
add_compile_options("$<$<CXX_COMPILER_ID:GNU>:-fno-canonical-system-headers>")

set(weft_bundled_dir "${PROJECT_BINARY_DIR}/bundled")
file(COPY "${WEFT_ASIO_INCLUDE_DIR}/asio.hpp" "${WEFT_ASIO_INCLUDE_DIR}/asio" DESTINATION "${weft_bundled_dir}/include")
foreach(library ssl crypto)
  find_library(WEFT_LIB${library} lib${library}.a REQUIRED)
  file(COPY "${WEFT_LIB${library}}" DESTINATION "${weft_bundled_dir}/lib")
endforeach()

# Debian's libcapnp.a is not position-independent code, which weft._C needs. The version is that of WEFT_CAPNP on Debian 12.
include(ExternalProject)
ExternalProject_Add(weft_capnproto
  URL "${WEFT_CAPNP_SOURCE}"  # the archive of its source
  URL_HASH SHA256=4031e9c9158fce1979baf3c5234315c1be74b273c0be9f6c4aaf4d0dfda52542
  DOWNLOAD_EXTRACT_TIMESTAMP OFF
  CMAKE_ARGS -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_TESTING=OFF -DWITH_OPENSSL=OFF
             "-DCMAKE_CXX_FLAGS=-ffile-prefix-map=<SOURCE_DIR>/="
  BUILD_COMMAND "${CMAKE_COMMAND}" --build . --target kj capnp
  INSTALL_COMMAND "${CMAKE_COMMAND}" -E copy src/kj/libkj.a src/capnp/libcapnp.a "${weft_bundled_dir}/lib"
    COMMAND "${CMAKE_COMMAND}" -E copy_directory <SOURCE_DIR>/src "${weft_bundled_dir}/include"
  BUILD_BYPRODUCTS "${weft_bundled_dir}/lib/libkj.a" "${weft_bundled_dir}/lib/libcapnp.a")

include(WeftBundled)
add_dependencies(weft::bundled weft_capnproto)

install(FILES "${PROJECT_SOURCE_DIR}/cmake/WeftBundled.cmake" DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/weft")
install(DIRECTORY "${weft_bundled_dir}" DESTINATION . FILES_MATCHING
        PATTERN "*.a" PATTERN "*.h" PATTERN "*.hpp" PATTERN "*.ipp" PATTERN "test*" EXCLUDE)
foreach(package libasio-dev libcapnp-dev libssl-dev nlohmann-json3-dev libcli11-dev)
  install(FILES "/usr/share/doc/${package}/copyright" DESTINATION "${SKBUILD_METADATA_DIR}/licenses" RENAME "${package}.txt")
endforeach()
