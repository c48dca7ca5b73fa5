// record_frames FOLDER: records the conversations of archive.h and flow.h between a client and a server of
// this version. Writes client.frames and server.frames, flow_client.frames and flow_server.frames to FOLDER.
// Run it at each release. evolution_test.cc and flow_test.cc check later versions against the recordings.
#include <cstdio>
#include <fstream>
#include <thread>

#include "tests/rpc/evolution/archive.h"
#include "tests/rpc/evolution/flow.h"
#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using Bytes = std::vector<std::byte>;

void append(Bytes& all, const InboundFrame& frame) {
  std::array<std::byte, Prefix::size> prefix;
  encode(frame.prefix, prefix);
  all.insert(all.end(), prefix.begin(), prefix.end());
  all.insert(all.end(), frame.header.bytes().begin(), frame.header.bytes().end());
  for (const Buffer& attachment : frame.attachments) {
    all.insert(all.end(), attachment.bytes().begin(), attachment.bytes().end());
    all.resize(all.size() + (padded(attachment.size()) - attachment.size()));
  }
}

void write(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  std::printf("%s: %zu bytes\n", path.c_str(), bytes.size());
}

void record_archive(const std::string& folder) {
  Bytes client_says;
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
  Bytes server_says;
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

// Forwards and records one direction of a connection.
class Relay {
 public:
  Relay(probe::Socket& from, probe::Socket& to)
      : thread_([this, &from, &to] {
          while (const auto frame = from.next()) {
            Bytes bytes;
            append(bytes, *frame);
            {
              std::lock_guard lock(mutex_);
              said_.insert(said_.end(), bytes.begin(), bytes.end());
            }
            if (!to.send(bytes)) break;
          }
          to.end_sending();
        }) {}
  Bytes said() {
    std::lock_guard lock(mutex_);
    return said_;
  }

 private:
  std::mutex mutex_;  // guards said_
  Bytes said_;
  std::jthread thread_;
};

void record_flow(const std::string& folder) {
  std::optional<Agent> server(std::in_place, recorded::flow_server());
  std::optional<Agent> client(std::in_place, recorded::flow_client());
  server->serve(std::make_shared<recorded::Flow>());
  auto listener = probe::Socket::listening();
  const Peer peer = client->connect(listener.address());
  auto ready = peer.ready();

  auto from_client = listener.accept();
  auto to_server = probe::Socket::connected(server->addresses().front());
  Relay up(from_client, to_server), down(to_server, from_client);
  auto lane = listener.accept();
  auto lane_to_server = probe::Socket::connected(server->addresses().front());
  Relay lane_up(lane, lane_to_server), lane_down(lane_to_server, lane);
  test::got(std::move(ready));
  while (client->counts().lanes_made + server->counts().lanes_made != 2) std::this_thread::yield();

  const auto answers = recorded::talk(peer);
  if (answers.items != recorded::flow_items) throw std::runtime_error("that went wrong");
  write(folder + "/flow_client.frames", up.said());
  write(folder + "/flow_server.frames", down.said());
  client.reset();
  server.reset();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  record_archive(argv[1]);
  record_flow(argv[1]);
}
