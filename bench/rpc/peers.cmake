# Additional parts of bench_rpc: the program that counts allocations, and the peers that need additional packages. A
# peer whose package is missing is not built.

if(NOT TARGET bench_rpc)
  return()
endif()

set(generated "${CMAKE_CURRENT_BINARY_DIR}/generated")  # <bench/rpc/FILE.h> of what is generated
file(MAKE_DIRECTORY "${generated}/bench/rpc")
target_include_directories(bench_rpc SYSTEM PRIVATE "${generated}")

function(weft_bench_peer_without NAME PACKAGES)
  message(STATUS "weft: bench_rpc is without ${NAME}: it needs ${PACKAGES}")
  get_target_property(sources bench_rpc SOURCES)
  list(FILTER sources EXCLUDE REGEX "/rpc/${NAME}_peer\\.cc$")
  set_target_properties(bench_rpc PROPERTIES SOURCES "${sources}")
endfunction()

# weft_bench_generated(file...): C++ that a schema compiler makes.
function(weft_bench_generated)
  target_sources(bench_rpc PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -w)
endfunction()

weft_bench(rpc_allocs LINK weft::rpc SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/rpc/allocs/main.cc")
add_dependencies(bench_rpc bench_rpc_allocs)

# --- gRPC ---

find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(WEFT_GRPC QUIET IMPORTED_TARGET grpc++ protobuf)
endif()
find_program(WEFT_PROTOC protoc)
find_program(WEFT_GRPC_PLUGIN grpc_cpp_plugin)
if(TARGET PkgConfig::WEFT_GRPC AND WEFT_PROTOC AND WEFT_GRPC_PLUGIN)
  set(schema "${CMAKE_CURRENT_SOURCE_DIR}/rpc/grpc_peer.proto")
  set(made_grpc "${generated}/bench/rpc/grpc_peer")
  add_custom_command(
    OUTPUT "${made_grpc}.pb.cc" "${made_grpc}.pb.h" "${made_grpc}.grpc.pb.cc" "${made_grpc}.grpc.pb.h"
    COMMAND "${WEFT_PROTOC}" "--proto_path=${PROJECT_SOURCE_DIR}" "--cpp_out=${generated}" "--grpc_out=${generated}"
            "--plugin=protoc-gen-grpc=${WEFT_GRPC_PLUGIN}" "${schema}"
    DEPENDS "${schema}"
    VERBATIM)
  weft_bench_generated("${made_grpc}.pb.cc" "${made_grpc}.pb.h" "${made_grpc}.grpc.pb.cc" "${made_grpc}.grpc.pb.h")
  target_link_libraries(bench_rpc PRIVATE PkgConfig::WEFT_GRPC)
  target_compile_definitions(bench_rpc PRIVATE WEFT_BENCH_GRPC)
else()
  weft_bench_peer_without(grpc "libgrpc++-dev, libprotobuf-dev and protobuf-compiler-grpc")
endif()

# --- Cap'n Proto's RPC: weft itself needs only its serialization ---

if(TARGET CapnProto::capnp-rpc)
  set(schema "${CMAKE_CURRENT_SOURCE_DIR}/rpc/capnp_peer.capnp")
  set(made "${generated}/bench/rpc/capnp_peer.capnp")
  add_custom_command(
    OUTPUT "${made}.c++" "${made}.h"
    COMMAND "${WEFT_CAPNP}" compile "-oc++:${generated}" "--src-prefix=${PROJECT_SOURCE_DIR}" "${schema}"
    DEPENDS "${schema}"
    VERBATIM)
  weft_bench_generated("${made}.c++" "${made}.h")
  target_link_libraries(bench_rpc PRIVATE CapnProto::capnp-rpc)
  target_compile_definitions(bench_rpc PRIVATE WEFT_BENCH_CAPNP)
else()
  weft_bench_peer_without(capnp "Cap'n Proto's capnp-rpc")
endif()
