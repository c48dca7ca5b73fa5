// record_frames FOLDER: writes what this version's client and server say in the recorded conversation
// (archive.h) to FOLDER/client.frames and FOLDER/server.frames. Run at each release; evolution_test.cc holds
// later versions to it.
#include <cstdio>
#include <fstream>

#include "tests/rpc/evolution/archive.h"
#include "tests/support/raw_peer.h"

namespace {

using namespace weft;
using namespace weft::rpc;

void append(std::vector<std::byte>& all, const InboundFrame& frame) {
  std::array<std::byte, Prefix::size> prefix;
  encode(frame.prefix, prefix);
  all.insert(all.end(), prefix.begin(), prefix.end());
  all.insert(all.end(), frame.header.bytes().begin(), frame.header.bytes().end());
  for (const Buffer& attachment : frame.attachments) {
    all.insert(all.end(), attachment.bytes().begin(), attachment.bytes().end());
    all.resize(all.size() + (padded(attachment.size()) - attachment.size()));
  }
}

void write(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  std::printf("%s: %zu bytes\n", path.c_str(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];

  std::vector<std::byte> client_says;
  {
    auto listener = probe::Socket::listening();
    Agent client({.name = "client"});
    auto calls = recorded::call_all(client.connect(listener.address()));
    auto server = listener.accept();
    HelloInfo hello;
    hello.name = "server";
    hello.incarnation = 7;
    server.send(OutgoingMessage::hello(hello).head.bytes());
    for (std::size_t i = 0; i < 1 + recorded::answers + 1; ++i) append(client_says, *server.next());
  }
  std::vector<std::byte> server_says;
  {
    Agent server({.name = "server", .listen = {"tcp://127.0.0.1:0"}});
    server.serve(std::make_shared<recorded::Archive>());
    auto client = probe::Socket::connected(server.addresses().front());
    client.send(client_says);
    for (std::size_t i = 0; i < 1 + recorded::answers; ++i) append(server_says, *client.next());
  }
  write(folder + "/client.frames", client_says);
  write(folder + "/server.frames", server_says);
}
