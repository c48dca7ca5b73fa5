// The codec of durations and times, which are sent as nanoseconds. Thread-safety: stateless.
#pragma once

#include <weft/rpc/codec/struct_codec.h>

#include <chrono>

template <>
struct weft::rpc::Codec<std::chrono::nanoseconds> {
  static void describe(TypeText& text) { Codec<std::int64_t>::describe(text); }
  static void encode(ValueWriter writer, std::chrono::nanoseconds time) {
    Codec<std::int64_t>::encode(writer, time.count());
  }
  static std::chrono::nanoseconds decode(ValueReader reader) {
    return std::chrono::nanoseconds{Codec<std::int64_t>::decode(reader)};
  }
};
