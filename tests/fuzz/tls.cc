// A TLS handshake, and the connection after it. Two sides talk over a wire that an attacker controls: the
// input states how many bytes the attacker passes on, and which ones the attacker changes, drops, repeats,
// swaps with the other direction's, or invents.
//
// Neither side may crash or spin, and each side receives the bytes that the other sent, or the beginning of
// them.
#include "tests/support/tls.h"
#include "tests/fuzz/target.h"

namespace weft::fuzz {
namespace {

using namespace test;

void must(bool holds, const char* what) {
  if (!holds) fail(what);
}

// Reads numbers from the input. After its end, the numbers are zero.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  std::uint8_t next() {
    if (left_.empty()) return 0;
    const std::uint8_t value = left_.front();
    left_ = left_.subspan(1);
    return value;
  }
  std::string bytes(std::size_t size) {
    std::string taken;
    while (taken.size() < size) taken += static_cast<char>(next());
    return taken;
  }

 private:
  std::span<const std::uint8_t> left_;
};

// One direction of the wire, as the attacker has it.
struct Direction {
  rpc::ByteStream& from;
  rpc::ByteStream& to;
  std::string held, last;  // bytes that arrived and were not passed on; bytes that were passed on
  bool ended = false;

  void take() {
    for (;;) {
      std::byte bytes[4096];
      const std::span<std::byte> into[] = {bytes};
      std::error_code error;
      const std::size_t size = from.read(into, error);
      held.append(reinterpret_cast<const char*>(bytes), size);
      ended = ended || (error && error != asio::error::would_block);
      if (size == 0) return;
    }
  }
  void give(const std::string& bytes) {
    if (bytes.empty()) return;
    last = bytes;
    std::error_code error;
    const std::span<const std::byte> out[] = {std::as_bytes(std::span(bytes))};
    to.write(out, error);  // the pair's capacity exceeds what a side sends
  }
  std::string cut(std::size_t size) {
    std::string piece = held.substr(0, size);
    held.erase(0, piece.size());
    return piece;
  }
};

struct Kinds {
  TestAuthority authority;
  rpc::Credentials certificate{authority.credentials("server")};
  rpc::Credentials secret{secret_options("job7", "a secret of the whole job")};
  rpc::Credentials both{[this] {
    auto options = authority.credentials("server");
    options.secrets = {{.id = "job7", .bytes = "a secret of the whole job"},
                       {.id = "job6", .bytes = "the secret that was before"}};
    return options;
  }()};
};

void run(const std::uint8_t* data, std::size_t size) {
  static const Kinds kinds;  // the generation of keys takes longer than the rest
  const rpc::Credentials* const all[] = {&kinds.certificate, &kinds.secret, &kinds.both};
  Choices choices(data, size);
  const std::uint8_t setting = choices.next();

  const auto loop = std::make_shared<ManualLoop>();
  auto left = PairedStream::make(loop), right = PairedStream::make(loop);
  const std::string up(100 + 300 * (setting >> 6), 'u'), down(50, 'd');
  Talker client(rpc::make_tls_stream(std::move(left.first), *all[setting % 3],
                                     rpc::ExpectedPeer{.host = "server", .agent = "server"}, loop),
                up, true);
  Talker server(rpc::make_tls_stream(std::move(right.second), *all[setting / 3 % 3], std::nullopt, loop),
                down, true);
  Direction there{*left.second, *right.first, {}, {}}, back{*right.first, *left.second, {}, {}};
  client.start();
  server.start();

  // While the input has bytes, three of them are one action of the attacker. Then all bytes are passed on
  // unchanged.
  bool honest = true;
  for (bool moved = true; moved || !choices.empty();) {
    loop->run(100'000);
    there.take();
    back.take();
    moved = !there.held.empty() || !back.held.empty();
    if (choices.empty()) {
      there.give(there.cut(there.held.size()));
      back.give(back.cut(back.held.size()));
      continue;
    }
    const std::uint8_t deed = choices.next(), first = choices.next(), second = choices.next();
    Direction& one = deed & 1 ? back : there;
    Direction& other = deed & 1 ? there : back;
    std::string piece;
    switch (deed >> 1 & 15) {
      default:  // passes some bytes on
        piece = one.cut(first * (deed >> 5));
        break;
      case 8:  // changes a byte
        piece = one.cut(256);
        if (!piece.empty()) {
          char& byte = piece[first % piece.size()];
          byte = static_cast<char>(byte ^ second);
          honest = honest && second == 0;
        }
        break;
      case 9:  // drops some
        honest = one.cut(1 + first % 64).empty() && honest;
        break;
      case 10:  // invents some bytes
        piece = choices.bytes(1 + first % 64);
        honest = false;
        break;
      case 11:  // repeats the last bytes
        piece = one.last;
        honest = honest && piece.empty();
        break;
      case 12:  // sends a side its own bytes
        piece = other.last;
        honest = honest && piece.empty();
        break;
      case 13: {  // ends a direction
        std::error_code error;
        one.to.shut_down_writing(error);
        honest = false;
        break;
      }
      case 14:  // a record of any kind with a valid header
        piece = choices.bytes(second % 64);
        piece = std::string(1, static_cast<char>(0x14 + first % 4)) + "\x03\x03" + '\0' +
                static_cast<char>(piece.size()) + piece;
        honest = false;
        break;
      case 15:  // swaps two pieces
        piece = one.cut(1 + first % 32);
        honest = honest && (piece.empty() || one.held.empty());
        piece = one.cut(1 + second % 32) + piece;
        break;
    }
    one.give(piece);
  }
  loop->run(100'000);

  must(up.starts_with(server.received()), "the server received what the client had not sent");
  must(down.starts_with(client.received()), "the client received what the server had not sent");
  must(!server.ended() || server.received() == up, "the server sees an end that the client did not send");
  must(!client.ended() || client.received() == down, "the client sees an end that the server did not send");
  must(server.received().empty() || !server.stream().identity().empty(), "the server takes bytes of nobody");
  must(client.received().empty() || !client.stream().identity().empty(), "the client takes bytes of nobody");
  if (!honest) return;
  const bool certificates = setting % 3 != 1 && setting / 3 % 3 != 1,
             secrets = setting % 3 != 0 && setting / 3 % 3 != 0;
  must(client.ended() == (certificates || secrets) && server.ended() == client.ended(),
       "an honest wire, and not the outcome that the credentials should have");
}

}  // namespace

Corpus seeds() {
  Corpus corpus;
  for (std::uint8_t setting = 0; setting < 9; ++setting)
    corpus["honest" + std::to_string(setting)] = {setting};
  // Passes all bytes on, and then attacks once in each way.
  for (std::uint8_t deed = 8; deed < 16; ++deed) {
    std::vector<std::uint8_t> bytes{static_cast<std::uint8_t>(deed % 2 == 0 ? 0 : 4)};
    for (std::uint8_t direction : {0, 1, 0})
      bytes.insert(bytes.end(), {static_cast<std::uint8_t>(0xe0 | direction), 255, 0});
    bytes.insert(bytes.end(), {static_cast<std::uint8_t>(deed << 1), 5, 0x40, 1, 2, 3, 4});
    corpus["deed" + std::to_string(deed)] = std::move(bytes);
  }
  return corpus;
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::run(data, size);
  return 0;
}
