// Two sides of TLS over a pair of streams in memory, for tests: several kinds of credentials, and a complete
// handshake.
#pragma once

#include <weft/rpc/testing/test_authority.h>
#include <weft/rpc/transport/tls_stream.h>

#include "tests/support/byte_stream_pair.h"

namespace weft::test {

inline std::string some_bytes(std::size_t size, std::uint64_t seed = 7) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

inline rpc::CredentialOptions secret_options(std::string id, std::string bytes) {
  return {.secrets = {{.id = std::move(id), .bytes = std::move(bytes)}}};
}

// A client and a server. Each sends a message at once, as agents send their hellos.
struct TlsPair {
  static constexpr const char* from_client = "hello, server";
  static constexpr const char* from_server = "hello, client";

  TlsPair(const rpc::Credentials& client_credentials, const rpc::Credentials& server_credentials,
          rpc::ExpectedPeer expected = {.host = "server"}, PairOptions options = {}) {
    auto ends = PairedStream::make(loop, options);
    client_end = ends.first.get();
    server_end = ends.second.get();
    client = std::make_unique<Talker>(
        rpc::make_tls_stream(std::move(ends.first), client_credentials, std::move(expected), loop),
        from_client);
    server = std::make_unique<Talker>(
        rpc::make_tls_stream(std::move(ends.second), server_credentials, std::nullopt, loop), from_server);
  }

  TlsPair& run() {
    client->start();
    server->start();
    loop->run();
    return *this;
  }
  bool met() const { return client->received() == from_server && server->received() == from_client; }

  std::shared_ptr<ManualLoop> loop = std::make_shared<ManualLoop>();
  PairedStream *client_end, *server_end;  // the lower streams
  std::unique_ptr<Talker> client, server;
};

}  // namespace weft::test
