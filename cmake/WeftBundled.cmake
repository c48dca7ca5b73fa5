# weft::bundled: what the wheel has of the libraries that weft needs, in the folder weft_bundled_dir: the headers of Asio, and
# Cap'n Proto and OpenSSL as static libraries.

if(NOT TARGET weft::bundled)
  add_library(weft::bundled INTERFACE IMPORTED)
  set(_weft_libraries capnp kj ssl crypto)
  list(TRANSFORM _weft_libraries REPLACE "(.+)" "${weft_bundled_dir}/lib/lib\\1.a")
  set_target_properties(weft::bundled PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${weft_bundled_dir}/include"
    INTERFACE_LINK_LIBRARIES "${_weft_libraries}")
endif()
