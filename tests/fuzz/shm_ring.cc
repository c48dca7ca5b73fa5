// A hostile process at the other end of a ring: the input states what the process writes into the control
// page, and the next operations of its victim.
#include <weft/rpc/transport/shm/ring.h>

#include <asio/error.hpp>

#include <array>
#include <cstring>
#include <vector>

#include "tests/fuzz/target.h"

namespace weft::fuzz {
namespace {

class NoBell final : public rpc::Doorbell {
 public:
  void ring() override {}
};

// Takes numbers from the input. After its end, the numbers are zero.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    bytes = bytes < size_ ? bytes : size_;
    if (bytes != 0) std::memcpy(&value, data_, bytes);
    data_ += bytes;
    size_ -= bytes;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// Fails if a victim moves more bytes than requested, writes outside its memory, or fails with an error that
// is not allowed. The segment is created once.
void run(const std::uint8_t* data, std::size_t size) {
  static const rpc::ShmSegment segment = rpc::ShmSegment::create(rpc::ShmSegment::smallest);
  std::memset(segment.control(), 0, sizeof(rpc::RingControl));
  NoBell bell;
  rpc::RingReader reader(segment, bell);
  rpc::RingWriter writer(segment, bell);
  auto& control = *reinterpret_cast<rpc::RingControl*>(segment.control());
  constexpr std::byte guard{0xA5};
  std::vector<std::byte> memory(3 * rpc::ShmSegment::smallest);
  const auto check = [](bool holds) {
    if (!holds) fail("the contract of the ring is violated");
  };
  const auto allowed = [](const std::error_code& error) {
    return error == asio::error::would_block || error == asio::error::eof ||
           error == asio::error::connection_reset || error == std::errc::protocol_error;
  };

  for (Input input(data, size); !input.empty();) {
    const std::uint64_t what = input.number(1);
    const std::uint64_t near = input.number(1) - 128;  // an offset from the current position
    switch (what % 16) {
      case 0:
        control.writer.position = input.number(8);
        break;
      case 1:
        control.writer.position = control.reader.position + input.number(3);
        break;
      case 2:
        control.writer.position += near;
        break;
      case 3:
        control.reader.position = input.number(8);
        break;
      case 4:
        control.reader.position = control.writer.position - input.number(3);
        break;
      case 5:
        control.reader.position += near;
        break;
      case 6:
        control.writer.ended = static_cast<std::uint32_t>(near);
        break;
      case 7:
        control.asked_of_writer.reader_sleeps = static_cast<std::uint32_t>(near);
        break;
      case 8:
        control.asked_of_reader.writer_sleeps = static_cast<std::uint32_t>(near);
        break;
      case 9:
        control.reader.acknowledged = input.number(8);
        break;
      case 10:
        check(reader.fall_asleep() || reader.readable());
        break;
      case 11:
        check(writer.fall_asleep() || writer.writable());
        break;
      case 12:
        reader.acknowledge();
        break;
      case 13: {  // rarely, because the ring has nothing new after it
        if (near == 0) reader.abandon();
        break;
      }
      default: {
        const std::size_t first = input.number(2) % (memory.size() / 2) + 1;
        const std::size_t second = input.number(2) % (memory.size() / 2 - 2) + 1;
        const auto one = std::span(memory).first(first), two = std::span(memory).subspan(first, second);
        std::error_code error;
        std::size_t moved = 0;
        if (what % 16 == 14) {
          memory[first + second] = guard;
          moved = reader.read(std::array<std::span<std::byte>, 2>{one, two}, error);
          check(memory[first + second] == guard);
        } else {
          moved = writer.write(std::array<std::span<const std::byte>, 2>{one, two}, error);
        }
        check(moved <= first + second && (moved == 0) == static_cast<bool>(error) &&
              (!error || allowed(error)));
      }
    }
  }
}

}  // namespace

Corpus seeds() {
  Corpus corpus;
  // Bytes are written and read. Then each operation is done once, and bytes are written and read again.
  const std::vector<std::uint8_t> both{15, 128, 100, 0, 50, 0, 14, 128, 100, 0, 50, 0};
  corpus["honest"] = both;
  for (std::uint8_t deed = 0; deed < 14; ++deed) {
    auto bytes = both;
    bytes.insert(bytes.end(), {deed, 129});
    if (deed == 0 || deed == 3 || deed == 9) bytes.insert(bytes.end(), {0, 0, 0, 0, 1, 0, 0, 0});
    if (deed == 1 || deed == 4) bytes.insert(bytes.end(), {0, 16, 0});
    bytes.insert(bytes.end(), both.begin(), both.end());
    corpus["deed" + std::to_string(deed)] = std::move(bytes);
  }
  return corpus;
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::run(data, size);
  return 0;
}
