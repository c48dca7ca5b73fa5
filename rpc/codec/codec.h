// Codec<T>: encodes and decodes values of the C++ type T. This header has scalars, strings, sequences, maps,
// optionals, tuples, variants and enums; WEFT_CODEC defines the codec of a plain struct (struct_codec.h);
// higher layers define the codecs of tensors and RRefs. Other types need a specialization:
//
//   template <> struct Codec<MyType> {
//     static void describe(TypeText& text);                      // in the canonical grammar
//     static void encode(ValueWriter writer, const MyType& value);
//     static MyType decode(ValueReader reader);                  // throws Error(type_mismatch)
//   };
//
// Decoding is strict: an integer out of range, or a float instead of an integer, is a type_mismatch. Sizes
// from the message are checked before use. Types with the same canonical text are equal on the wire: the
// sender may use a vector where the receiver declares an array, and a Buffer where it declares a vector of
// bytes. Thread-safety: stateless.
#pragma once

#include <weft/rpc/codec/type_text.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/wire/value.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace weft::rpc {

namespace detail {

template <class T>
struct WithoutCodec {  // the compiler reports one error for each type, at its first use
  static_assert(!std::same_as<T, T>,
                "weft: values of this type cannot be sent: it has no Codec (WEFT_CODEC defines one)");
};

}  // namespace detail

// The primary template, for types without a codec.
template <class T>
struct Codec {
  // Marks the primary template: values of this type cannot be sent.
  using Missing = detail::WithoutCodec<T>;
  static void describe(TypeText&) { (void)sizeof(Missing); }
  static void encode(ValueWriter, const T&) { (void)sizeof(Missing); }
  static T decode(ValueReader) {
    (void)sizeof(Missing);
    throw Error(ErrorKind::unsupported, "no codec");
  }
};

// The types of arguments, results and fields.
template <class T>
concept Transferable = !requires { typename Codec<T>::Missing; } &&
                       requires(ValueWriter writer, ValueReader reader, const T& value, TypeText& text) {
                         Codec<T>::encode(writer, value);
                         { Codec<T>::decode(reader) } -> std::convertible_to<T>;
                         Codec<T>::describe(text);
                       };

// The canonical text of T: "[f64]", or "void".
template <class T>
std::string type_text() {
  TypeText text;
  if constexpr (std::is_void_v<T>) {
    text << "void";
  } else {
    Codec<T>::describe(text);
  }
  return text.take();
}

namespace detail {

// char and similar types are not numbers and have no codec: use std::string for text.
template <class T>
concept Integer =
    std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> && !std::same_as<T, wchar_t> &&
    !std::same_as<T, char8_t> && !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

template <class T>
constexpr std::string_view number_name() {
  if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? "f32" : "f64";
  if constexpr (std::is_signed_v<T>)
    return sizeof(T) == 1 ? "i8" : sizeof(T) == 2 ? "i16" : sizeof(T) == 4 ? "i32" : "i64";
  return sizeof(T) == 1 ? "u8" : sizeof(T) == 2 ? "u16" : sizeof(T) == 4 ? "u32" : "u64";
}

template <Integer T, class Wide>
T narrow(Wide value) {
  if (!std::in_range<T>(value))
    throw Error(ErrorKind::type_mismatch, "expected " + std::string(number_name<T>()) + ", found " +
                                              std::to_string(value) + ", which is out of range");
  return static_cast<T>(value);
}

template <class Map>
struct MapCodec {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;
  static void describe(TypeText& text) {
    text << "{";
    Codec<Key>::describe(text);
    text << ":";
    Codec<Value>::describe(text);
    text << "}";
  }
  static void encode(ValueWriter writer, const Map& map) {
    MapWriter entries = writer.set_map(map.size());
    std::size_t i = 0;
    for (const auto& [key, value] : map) {
      Codec<Key>::encode(entries.key(i), key);
      Codec<Value>::encode(entries.value(i), value);
      ++i;
    }
  }
  static Map decode(ValueReader reader) {
    if (reader.kind() != ValueKind::map) reader.mismatch("a map");
    Map map;
    for (std::size_t i = 0, n = reader.size(); i < n; ++i)
      map.emplace(Codec<Key>::decode(reader.map_key(i)), Codec<Value>::decode(reader.map_value(i)));
    return map;
  }
};

template <class Tuple, std::size_t... I>
struct TupleCodec {
  static void describe(TypeText& text) {
    text << "(";
    ((text << (I == 0 ? "" : ","), Codec<std::tuple_element_t<I, Tuple>>::describe(text)), ...);
    text << ")";
  }
  static void encode(ValueWriter writer, const Tuple& tuple) {
    [[maybe_unused]] ListWriter list = writer.set_list(sizeof...(I));
    (Codec<std::tuple_element_t<I, Tuple>>::encode(list[I], std::get<I>(tuple)), ...);
  }
  static Tuple decode(ValueReader reader) {
    if (reader.kind() != ValueKind::list) reader.mismatch("a tuple of " + std::to_string(sizeof...(I)));
    if (reader.size() != sizeof...(I))
      throw Error(ErrorKind::type_mismatch, "expected a tuple of " + std::to_string(sizeof...(I)) +
                                                ", found one of " + std::to_string(reader.size()));
    return Tuple{Codec<std::tuple_element_t<I, Tuple>>::decode(reader.at(I))...};
  }
};

template <class Tuple, std::size_t... I>
TupleCodec<Tuple, I...> tuple_codec(std::index_sequence<I...>);

}  // namespace detail

template <>
struct Codec<bool> {
  static void describe(TypeText& text) { text << "bool"; }
  static void encode(ValueWriter writer, bool value) { writer.set_bool(value); }
  static bool decode(ValueReader reader) { return reader.get_bool(); }
};

template <detail::Integer T>
struct Codec<T> {
  static void describe(TypeText& text) { text << detail::number_name<T>(); }
  static void encode(ValueWriter writer, T value) {
    if constexpr (std::is_signed_v<T>) {
      writer.set_int(value);
    } else {
      writer.set_uint(value);
    }
  }
  static T decode(ValueReader reader) {
    if constexpr (std::is_signed_v<T>) return detail::narrow<T>(reader.get_int());
    return detail::narrow<T>(reader.get_uint());
  }
};

template <class T>
  requires(std::same_as<T, float> || std::same_as<T, double>)
struct Codec<T> {
  static void describe(TypeText& text) { text << detail::number_name<T>(); }
  static void encode(ValueWriter writer, T value) { writer.set_real(static_cast<double>(value)); }
  static T decode(ValueReader reader) { return static_cast<T>(reader.get_real()); }
};

template <class T>
  requires std::is_enum_v<T>
struct Codec<T> {
  using Number = std::underlying_type_t<T>;
  static void describe(TypeText& text) {
    text << "enum(";
    Codec<Number>::describe(text);
    text << ")";
  }
  static void encode(ValueWriter writer, T value) {
    Codec<Number>::encode(writer, static_cast<Number>(value));
  }
  static T decode(ValueReader reader) { return static_cast<T>(Codec<Number>::decode(reader)); }
};

template <>
struct Codec<std::string> {
  static void describe(TypeText& text) { text << "str"; }
  static void encode(ValueWriter writer, std::string_view value) { writer.set_text(value); }
  static std::string decode(ValueReader reader) { return std::string(reader.get_text()); }
};

template <>
struct Codec<Unit> {
  static void describe(TypeText& text) { text << "void"; }
  static void encode(ValueWriter writer, Unit) { writer.set_nil(); }
  static Unit decode(ValueReader reader) {
    if (!reader.is_nil()) reader.mismatch("nothing");
    return {};
  }
};

// Bytes. Up to inline_limit bytes are part of the message's header. More bytes are an attachment, which the
// receiver reads directly into the memory of the result.
template <>
struct Codec<Buffer> {
  static constexpr std::size_t inline_limit = 1024;
  static void describe(TypeText& text) { text << "bytes"; }
  static void encode(ValueWriter writer, const Buffer& value) {
    if (value.size() <= inline_limit) return writer.set_bytes(value.bytes());
    writer.set_attachment(value);
  }
  static Buffer decode(ValueReader reader) {
    if (reader.kind() == ValueKind::attachment) return reader.get_attachment();
    return Buffer::copy(reader.get_bytes());
  }
};

namespace detail {

// The elements of a vector or an array. Floating-point numbers and signed integers are packed. Unsigned
// integers are not, because a packed list would lose their type.
template <class T>
struct ElementsCodec {
  static constexpr bool is_byte = std::same_as<T, std::byte> || std::same_as<T, std::uint8_t>;

  static void describe(TypeText& text) {
    if constexpr (is_byte) {
      text << "bytes";
    } else {
      text << "[";
      Codec<T>::describe(text);
      text << "]";
    }
  }
  template <class Sequence>
  static void encode(ValueWriter writer, const Sequence& values) {
    if constexpr (is_byte) {
      writer.set_bytes(std::as_bytes(std::span(values)));
    } else if constexpr (std::same_as<T, double>) {
      writer.set_reals(values);
    } else if constexpr (std::same_as<T, float>) {
      writer.set_floats(values);
    } else if constexpr (std::same_as<T, std::int64_t>) {
      writer.set_ints(values);
    } else if constexpr (Integer<T> && std::is_signed_v<T>) {
      writer.set_ints(std::vector<std::int64_t>(values.begin(), values.end()));
    } else {
      ListWriter list = writer.set_list(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) Codec<T>::encode(list[i], values[i]);
    }
  }
  // Decodes the i-th element. Not for bytes.
  static T decode(const ValueReader& reader, std::size_t i) {
    if constexpr (std::floating_point<T>) {
      return static_cast<T>(reader.real_at(i));
    } else if constexpr (Integer<T> && std::is_signed_v<T>) {
      return narrow<T>(reader.int_at(i));
    } else {
      return Codec<T>::decode(reader.at(i));
    }
  }
  // Decodes bytes, whether they are in the header or attached.
  static Buffer decode_bytes(const ValueReader& reader) {
    if (reader.kind() == ValueKind::attachment) return reader.get_attachment();
    const auto bytes = reader.get_bytes();  // no copy: the owner of the reader keeps the message
    return Buffer(nullptr, const_cast<std::byte*>(bytes.data()), bytes.size());
  }
};

}  // namespace detail

template <class T>
struct Codec<std::vector<T>> : detail::ElementsCodec<T> {
  using Elements = detail::ElementsCodec<T>;
  static std::vector<T> decode(ValueReader reader) {
    std::vector<T> values;
    if constexpr (Elements::is_byte) {
      const Buffer bytes = Elements::decode_bytes(reader);
      const T* first = reinterpret_cast<const T*>(bytes.data());
      values.assign(first, first + bytes.size());
    } else {
      const std::size_t n = reader.size();
      values.reserve(n);  // n is at most the number of words in the header
      for (std::size_t i = 0; i < n; ++i) values.push_back(Elements::decode(reader, i));
    }
    return values;
  }
};

template <class T, std::size_t N>
struct Codec<std::array<T, N>> : detail::ElementsCodec<T> {
  using Elements = detail::ElementsCodec<T>;
  static std::array<T, N> decode(ValueReader reader) {
    std::array<T, N> values{};
    const auto expect = [&](std::size_t found) {
      if (found != N)
        throw Error(ErrorKind::type_mismatch,
                    "expected " + std::to_string(N) + " elements, found " + std::to_string(found));
    };
    if constexpr (Elements::is_byte) {
      const Buffer bytes = Elements::decode_bytes(reader);
      expect(bytes.size());
      std::copy_n(reinterpret_cast<const T*>(bytes.data()), N, values.begin());
    } else {
      expect(reader.size());
      for (std::size_t i = 0; i < N; ++i) values[i] = Elements::decode(reader, i);
    }
    return values;
  }
};

template <class T>
struct Codec<std::optional<T>> {
  static void describe(TypeText& text) {
    Codec<T>::describe(text);
    text << "?";
  }
  static void encode(ValueWriter writer, const std::optional<T>& value) {
    if (!value) return writer.set_nil();
    // The value is wrapped, to distinguish the levels of nested optionals.
    Codec<T>::encode(writer.set_variant(1), *value);
  }
  static std::optional<T> decode(ValueReader reader) {
    if (reader.is_nil()) return std::nullopt;
    return Codec<T>::decode(reader.variant_value());
  }
};

template <class K, class V>
struct Codec<std::map<K, V>> : detail::MapCodec<std::map<K, V>> {};
template <class K, class V>
struct Codec<std::unordered_map<K, V>> : detail::MapCodec<std::unordered_map<K, V>> {};

template <class... T>
struct Codec<std::tuple<T...>>
    : decltype(detail::tuple_codec<std::tuple<T...>>(std::index_sequence_for<T...>{})) {};
template <class A, class B>
struct Codec<std::pair<A, B>>
    : decltype(detail::tuple_codec<std::pair<A, B>>(std::index_sequence_for<A, B>{})) {};

template <class... T>
struct Codec<std::variant<T...>> {
  static void describe(TypeText& text) {
    std::string_view separator = "<";
    ((text << separator, separator = "|", Codec<T>::describe(text)), ...);
    text << ">";
  }
  static void encode(ValueWriter writer, const std::variant<T...>& value) {
    std::visit([&]<class V>(const V& held) { Codec<V>::encode(writer.set_variant(value.index()), held); },
               value);
  }
  static std::variant<T...> decode(ValueReader reader) {
    return decode_alternative(reader, reader.variant_index(), std::index_sequence_for<T...>{});
  }

 private:
  template <std::size_t... I>
  static std::variant<T...> decode_alternative(ValueReader reader, std::size_t index,
                                               std::index_sequence<I...>) {
    std::optional<std::variant<T...>> value;
    (void)((index == I && (value.emplace(std::in_place_index<I>,
                                         Codec<std::variant_alternative_t<I, std::variant<T...>>>::decode(
                                             reader.variant_value())),
                           true)) ||
           ...);
    if (!value)
      throw Error(ErrorKind::type_mismatch, "expected a variant of " + std::to_string(sizeof...(T)) +
                                                " alternatives, found alternative " + std::to_string(index));
    return std::move(*value);
  }
};

}  // namespace weft::rpc
