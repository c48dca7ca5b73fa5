#include <weft/rpc/transport/shm/hello.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/shm/segment.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace weft::rpc {
namespace {

constexpr std::uint64_t hello_magic = 0x6d68732d74666577;  // "weft-shm"
constexpr std::uint32_t bulk_flag = 1;

// The bytes of a hello and of an answer.
struct HelloLayout {
  std::uint64_t magic;
  std::uint16_t version, oldest;
  std::uint32_t flags;
  std::uint64_t capacity, bulk_begin;
  PeerMemory::Nonce nonce;
  std::uint64_t bulk_end, reserved;
};
using AnswerLayout = std::array<std::uint64_t, 2>;  // kind and value
static_assert(std::endian::native == std::endian::little);

template <class Layout>
Layout layout_of(std::span<const std::byte, sizeof(Layout)> bytes) {
  Layout layout;
  std::memcpy(&layout, bytes.data(), sizeof layout);
  return layout;
}

[[noreturn]] void bad_hello(const std::string& what) {
  throw Error(ErrorKind::protocol_error, "bad handshake from the other side: " + what);
}

}  // namespace

ShmHello::Bytes ShmHello::encode() const {
  return std::bit_cast<Bytes>(HelloLayout{hello_magic, version, oldest, bulk ? bulk_flag : 0U, capacity,
                                          bulk_begin, nonce, bulk_end, 0});
}

ShmHello ShmHello::decode(std::span<const std::byte, size> in) {
  const auto layout = layout_of<HelloLayout>(in);
  if (layout.magic != hello_magic) bad_hello("this is not weft's shared memory");
  ShmHello hello;
  hello.version = layout.version;
  hello.oldest = layout.oldest;
  if (hello.oldest > hello.version)
    bad_hello("it speaks versions " + std::to_string(hello.oldest) + " to " + std::to_string(hello.version));
  if (hello.version < current || hello.oldest > current)
    bad_hello("it speaks versions " + std::to_string(hello.oldest) + " to " + std::to_string(hello.version) +
              ", this side " + std::to_string(current));
  hello.bulk = (layout.flags & bulk_flag) != 0;  // ignores flags of later versions
  hello.capacity = layout.capacity;
  if (!std::has_single_bit(hello.capacity) || hello.capacity < ShmSegment::smallest ||
      hello.capacity > ShmSegment::largest)
    bad_hello("a ring of " + std::to_string(hello.capacity) +
              " bytes, expected a power of two from 64 KiB to 1 GiB");
  hello.bulk_begin = layout.bulk_begin;
  if (hello.bulk && hello.bulk_begin == 0) bad_hello("bulk from 0 bytes, expected at least 1");
  hello.nonce = layout.nonce;
  hello.bulk_end = layout.bulk_end;
  return hello;
}

BulkRange ShmHello::agreed_bulk(const ShmHello& theirs) const {
  const bool ends = bulk_end != 0 && theirs.bulk_end != 0;
  return {std::max(bulk_begin, theirs.bulk_begin),
          ends ? std::min(bulk_end, theirs.bulk_end) : BulkRange::no_end};
}

ShmAnswer::Bytes ShmAnswer::encode() const { return std::bit_cast<Bytes>(AnswerLayout{kind, value}); }

std::uint64_t ShmAnswer::decode(Kind kind, std::span<const std::byte, size> in) {
  const auto [found, value] = layout_of<AnswerLayout>(in);
  if (found != kind || (kind == verdict && value > 1)) bad_hello(kind == proof ? "no proof" : "no verdict");
  return value;
}

}  // namespace weft::rpc
