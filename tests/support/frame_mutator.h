// FrameMutator: mutates a frame by a seed number. It knows the structure of frames (the fields of the prefix,
// the segment table, Cap'n Proto's pointers, the attachments), and damages it at one to three places. Even
// seeds correct the checksum, so that the checks after it are reached. The same seed makes the same mutation
// on every machine. Thread-safety: none.
#pragma once

#include <weft/rpc/wire/frame.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

namespace weft::test {

using Bytes = std::vector<std::byte>;

class FrameMutator {
 public:
  FrameMutator(std::uint64_t seed, const rpc::Limits& limits)
      : random_(seed), limits_(limits), reseals_(seed % 2 == 0) {}

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[below(from.size())];
  }

  // Returns a frame that differs from the given one. `other` is a frame whose parts may be spliced in.
  Bytes mutate(const Bytes& frame, const Bytes& other) {
    for (;;) {
      bytes_ = frame;
      head_ = prefix_size + std::size_t{take<std::uint32_t>(words_at)} * 8;
      for (std::size_t n = 1 + below(3); n != 0; --n) step(other);
      if (reseals_) reseal();
      if (bytes_ != frame) return std::move(bytes_);
    }
  }

 private:
  static constexpr std::size_t prefix_size = rpc::Prefix::size;
  static constexpr std::size_t version_at = 4, kind_at = 5, flags_at = 6, words_at = 8, checksum_at = 12,
                               call_id_at = 16, body_at = 24;

  template <class T>
  T take(std::size_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }
  template <class T>
  void put(std::size_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  std::uint64_t one_of(std::initializer_list<std::uint64_t> values) {
    return *(values.begin() + below(values.size()));
  }
  // Replaces a length or a count `n` by a value at which its checks are likely to fail.
  std::uint64_t near(std::uint64_t n) {
    return one_of({0,
                   1,
                   n - 1,
                   n + 1,
                   n + 7,
                   n + 64,
                   n / 2,
                   n * 2,
                   n * 8,
                   limits_.header / 8,
                   limits_.header / 8 + 1,
                   limits_.message,
                   limits_.message + 1,
                   limits_.attachments + 1,
                   0x1fffffff,
                   0x7fffffff,
                   0xffffffff,
                   std::uint64_t{1} << 63,
                   ~std::uint64_t{0} - 63,
                   ~std::uint64_t{0}});
  }

  void step(const Bytes& other) {
    const std::size_t choice = below(20);
    if (choice == 0) return cut();
    if (choice == 1) return splice(other);
    if (bytes_.size() < head_) return;  // already cut
    if (choice <= 4) return prefix();
    if (choice <= 6) return segment_table();
    if (choice == 7) return length();
    if (choice == 8) return body();
    word();
  }

  void cut() { bytes_.resize(1 + below(bytes_.size())); }

  void splice(const Bytes& other) {
    const std::size_t from = below(other.size());
    bytes_.resize(1 + below(bytes_.size()));
    bytes_.insert(bytes_.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
  }

  void prefix() {
    switch (below(8)) {
      case 0:
        return flip(below(prefix_size * 8));
      case 1:
        return put(kind_at, static_cast<std::uint8_t>(one_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 255})));
      case 2:
        return put(flags_at, static_cast<std::uint16_t>(one_of({0, 1, 2, 3, 0x8000, 0xffff})));
      case 3:
        return put(version_at, static_cast<std::uint8_t>(one_of({0, 2, 128, 255})));
      case 4:
        return put(words_at, static_cast<std::uint32_t>(near(take<std::uint32_t>(words_at))));
      case 5:
        return put(body_at, near(take<std::uint64_t>(body_at)));
      case 6:
        return put(call_id_at, one_of({0, 1, 2, 3, take<std::uint64_t>(call_id_at) + 1, ~std::uint64_t{0}}));
      default:
        return put(checksum_at, static_cast<std::uint32_t>(random_()));
    }
  }

  void segment_table() {
    const std::size_t count = take<std::uint32_t>(prefix_size);
    if (one_in(3))
      return put(prefix_size, static_cast<std::uint32_t>(one_of({0, 1, 2, 3, count + 1, limits_.segments - 1U,
                                                                 limits_.segments, 0xfffffffe, 0xffffffff})));
    const std::size_t at = prefix_size + 4 * (1 + below(count + 2));
    if (at + 4 <= bytes_.size()) put(at, static_cast<std::uint32_t>(near(take<std::uint32_t>(at))));
  }

  // Inserts or removes words anywhere in the header.
  void length() {
    const std::size_t at = prefix_size + 8 * below(words() + 1);
    const auto place = bytes_.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t size = 8 * (1 + below(3));
    if (one_in(2)) {
      bytes_.insert(place, size, std::byte(random_()));
      head_ += size;
    } else if (at + size < head_) {
      bytes_.erase(place, place + static_cast<std::ptrdiff_t>(size));
      head_ -= size;
    }
  }

  void body() {
    if (one_in(3)) return bytes_.resize(bytes_.size() + one_of({1, 63, 64, 4096}), std::byte{0x5a});
    if (bytes_.size() == head_) return;
    if (one_in(2)) return bytes_.resize(bytes_.size() - 1 - below(bytes_.size() - head_));
    flip(head_ * 8 + below((bytes_.size() - head_) * 8));
  }

  // Changes one word of the header as if it were a pointer, the tag of a list, the tag of a union, a size, or
  // text.
  void word() {
    const std::size_t n = one_in(2) ? std::min<std::size_t>(words(), 24) : words();
    const std::size_t at = prefix_size + 8 * below(n);
    const auto word = take<std::uint64_t>(at);
    const std::uint64_t low = word & 0xffffffff, high = word >> 32;
    const auto put_low = [&](std::uint64_t value) { put(at, static_cast<std::uint32_t>(value)); };
    const auto put_high = [&](std::uint64_t value) { put(at + 4, static_cast<std::uint32_t>(value)); };
    switch (below(17)) {
      case 0:
        return flip(at * 8 + below(64));
      case 1:
        return put(at, one_of({0, ~std::uint64_t{0}, 1, 3, random_()}));
      case 2:
        return put(at, take<std::uint64_t>(prefix_size + 8 * below(words())));
      case 3: {
        const std::size_t to = prefix_size + 8 * below(words());
        put(at, take<std::uint64_t>(to));
        return put(to, word);
      }
      case 4:  // the kind of a pointer
        return put_low((low & ~std::uint64_t{3}) | below(4));
      case 5:  // the target of a pointer
      case 6:
        return put_low((low & 3) | (one_of({0, 1, ~std::uint64_t{0}, (low >> 2) + 1, (low >> 2) - 1, words(),
                                            std::uint64_t{0} - words(), random_()})
                                    << 2));
      case 7:  // the number of elements of a list
        return put_high((high & 7) | near(high >> 3) << 3);
      case 8:  // and the size of its elements
        return put_high((high & ~std::uint64_t{7}) | below(8));
      case 9: {  // the sizes of a struct
        const std::size_t lane = 2 * below(2);
        return put(at + 4 + lane, static_cast<std::uint16_t>(near(high & 0xffff)));
      }
      case 10: {  // a far pointer, perhaps a double-far one
        const std::uint64_t doubled = below(2);
        const std::uint64_t offset = below(words() + 2);
        return put(at, 2 | doubled << 2 | offset << 3 | one_of({0, 1, 2, 0xffffffff}) << 32);
      }
      case 11:  // the tag of a union
      case 12: {
        const std::size_t lane = 2 * below(4);
        return put(at + lane, static_cast<std::uint16_t>(below(20)));
      }
      case 13: {  // the tag of a list of structs, or of no list
        const std::uint64_t count = near(words());
        const std::uint64_t data = below(4);
        const std::uint64_t pointers = below(4);
        return put(at, (count << 2 & 0xffffffff) | data << 32 | pointers << 48);
      }
      case 14:  // the size of an attachment, or any number
        return put(at, near(word));
      case 15: {
        const std::size_t byte = below(8);
        return put(at + byte, static_cast<std::uint8_t>(random_()));
      }
      default:  // the word itself or one near it, as the content of a list or struct
        return put(at, (word & ~std::uint64_t{0xfffffffc}) | (std::uint64_t{0x3fffffff - below(3)} << 2));
    }
  }

  void flip(std::size_t bit) { bytes_[bit / 8] ^= std::byte(1U << bit % 8); }
  std::size_t words() const { return (head_ - prefix_size) / 8; }

  // Corrects the checksum, and in half of the cases first the sizes in the prefix.
  void reseal() {
    if (bytes_.size() < prefix_size) return;
    if (one_in(2) && bytes_.size() >= head_) {
      put(words_at, static_cast<std::uint32_t>(words()));
      put(body_at, std::uint64_t{bytes_.size() - head_});
      if (one_in(2) && take<std::uint32_t>(prefix_size) == 0)
        put(prefix_size + 4, static_cast<std::uint32_t>(words() - 1));
    }
    const std::span all(bytes_);
    const std::size_t header =
        std::min(bytes_.size() - prefix_size, std::size_t{take<std::uint32_t>(words_at)} * 8);
    put(checksum_at, rpc::frame_checksum(all.first<prefix_size>(), all.subspan(prefix_size, header)));
  }

  std::mt19937_64 random_;
  rpc::Limits limits_;
  bool reseals_;
  Bytes bytes_;
  std::size_t head_ = 0;  // size of the prefix and of the bytes in the place of the header
};

}  // namespace weft::test
