# gRPC in bench_serve, with the messages that bench_rpc generates.

if(TARGET bench_serve AND TARGET PkgConfig::WEFT_GRPC AND WEFT_PROTOC AND WEFT_GRPC_PLUGIN)
  target_sources(bench_serve PRIVATE "${made_grpc}.pb.cc" "${made_grpc}.grpc.pb.cc" "${made_grpc}.pb.h" "${made_grpc}.grpc.pb.h")
  target_include_directories(bench_serve SYSTEM PRIVATE "${generated}")
  target_link_libraries(bench_serve PRIVATE PkgConfig::WEFT_GRPC)
  target_compile_definitions(bench_serve PRIVATE WEFT_BENCH_GRPC)
elseif(TARGET bench_serve)
  message(STATUS "weft: bench_serve is without grpc: it needs libgrpc++-dev, libprotobuf-dev and protobuf-compiler-grpc")
  get_target_property(sources bench_serve SOURCES)
  list(FILTER sources EXCLUDE REGEX "/serve/grpc_peer\\.cc$")
  set_target_properties(bench_serve PROPERTIES SOURCES "${sources}")
endif()
