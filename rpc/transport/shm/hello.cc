#include <weft/rpc/transport/shm/hello.h>

#include <weft/rpc/core/bytes.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/shm/segment.h>

#include <algorithm>
#include <bit>
#include <string>

namespace weft::rpc {
namespace {

constexpr std::uint64_t hello_magic = 0x6d68732d74666577;  // "weft-shm"
constexpr std::uint32_t bulk_flag = 1;

[[noreturn]] void bad_hello(const std::string& what) {
  throw Error(ErrorKind::protocol_error, "bad handshake from the other side: " + what);
}

}  // namespace

ShmHello::Bytes ShmHello::encode() const {
  Bytes out{};
  put_at(out, 0, hello_magic);
  put_at(out, 8, version);
  put_at(out, 10, oldest);
  put_at(out, 12, bulk ? bulk_flag : 0U);
  put_at(out, 16, capacity);
  put_at(out, 24, bulk_begin);
  put_at(out, 32, nonce);
  put_at(out, 48, bulk_end);
  return out;
}

ShmHello ShmHello::decode(std::span<const std::byte, size> in) {
  if (take_at<std::uint64_t>(in, 0) != hello_magic) bad_hello("this is not weft's shared memory");
  ShmHello hello;
  hello.version = take_at<std::uint16_t>(in, 8);
  hello.oldest = take_at<std::uint16_t>(in, 10);
  if (hello.oldest > hello.version)
    bad_hello("it speaks versions " + std::to_string(hello.oldest) + " to " + std::to_string(hello.version));
  if (hello.version < current || hello.oldest > current)
    bad_hello("it speaks versions " + std::to_string(hello.oldest) + " to " + std::to_string(hello.version) +
              ", this side " + std::to_string(current));
  hello.bulk = (take_at<std::uint32_t>(in, 12) & bulk_flag) != 0;  // ignores flags of later versions
  hello.capacity = take_at<std::uint64_t>(in, 16);
  if (!std::has_single_bit(hello.capacity) || hello.capacity < ShmSegment::smallest ||
      hello.capacity > ShmSegment::largest)
    bad_hello("a ring of " + std::to_string(hello.capacity) +
              " bytes, expected a power of two from 64 KiB to 1 GiB");
  hello.bulk_begin = take_at<std::uint64_t>(in, 24);
  if (hello.bulk && hello.bulk_begin == 0) bad_hello("bulk from 0 bytes, expected at least 1");
  hello.nonce = take_at<PeerMemory::Nonce>(in, 32);
  hello.bulk_end = take_at<std::uint64_t>(in, 48);
  return hello;
}

BulkRange ShmHello::agreed_bulk(const ShmHello& theirs) const {
  const bool ends = bulk_end != 0 && theirs.bulk_end != 0;
  return {std::max(bulk_begin, theirs.bulk_begin),
          ends ? std::min(bulk_end, theirs.bulk_end) : BulkRange::no_end};
}

ShmAnswer::Bytes ShmAnswer::encode() const {
  Bytes out{};
  put_at(out, 0, std::uint64_t{kind});
  put_at(out, 8, value);
  return out;
}

std::uint64_t ShmAnswer::decode(Kind kind, std::span<const std::byte, size> in) {
  const auto value = take_at<std::uint64_t>(in, 8);
  if (take_at<std::uint64_t>(in, 0) != kind || (kind == verdict && value > 1))
    bad_hello(kind == proof ? "no proof" : "no verdict");
  return value;
}

}  // namespace weft::rpc
