// WEFT_CODEC: defines the codec of a plain struct, with its fields by name.
//
//   struct Quote { std::string symbol; double price = 0; };
//   WEFT_CODEC(Quote, symbol, price)  // at namespace scope, in the struct's namespace; up to 64 fields
//
// A receiver ignores unknown fields. Missing fields have the values of a default-constructed struct. So
// fields may be added and removed while old and new programs communicate. The struct's canonical name is its
// name in the macro.
#pragma once

#include <weft/rpc/codec/codec.h>

namespace weft::rpc::detail {

template <class T>
concept HasFields = requires { weft_fields(static_cast<T*>(nullptr)); };

template <class Struct, class Member>
struct FieldOf {
  std::string_view name;
  Member Struct::* member;
};

}  // namespace weft::rpc::detail

namespace weft::rpc {

// Calls f(name, field) with each field of the codec of a struct.
template <detail::HasFields T, class F>
void for_each_field(const T& value, const F& f) {
  std::apply([&](auto... fields) { (f(fields.name, value.*fields.member), ...); },
             weft_fields(static_cast<T*>(nullptr)));
}

template <class T>
  requires detail::HasFields<T>
struct Codec<T> {
  static void describe(TypeText& text) {
    if (!text.open(weft_name(static_cast<T*>(nullptr)))) return;
    text << "{";
    std::string_view separator;
    each([&]<class Member>(std::size_t, std::string_view name, Member T::*) {
      text << separator << name << ":";
      separator = ",";
      Codec<Member>::describe(text);
    });
    text << "}";
    text.close();
  }
  static void encode(ValueWriter writer, const T& value) {
    RecordWriter record = writer.set_record(size);
    each([&]<class Member>(std::size_t i, std::string_view name, Member T::* member) {
      Codec<Member>::encode(record.field(i, name), value.*member);
    });
  }
  static T decode(ValueReader reader) {
    T value{};
    each([&]<class Member>(std::size_t i, std::string_view name, Member T::* member) {
      ValueReader field;
      if (!reader.find_field(name, i, field)) return;
      try {
        value.*member = Codec<Member>::decode(field);
      } catch (const Error& error) {
        throw Error(error.kind(), "field '" + std::string(name) + "': " + error.what());
      }
    });
    return value;
  }

 private:
  static constexpr std::size_t size = std::tuple_size_v<decltype(weft_fields(static_cast<T*>(nullptr)))>;

  template <class F>
  static void each(F&& f) {
    std::apply(
        [&](auto... fields) {
          std::size_t i = 0;
          (f(i++, fields.name, fields.member), ...);
        },
        weft_fields(static_cast<T*>(nullptr)));
  }
};

}  // namespace weft::rpc

// NOLINTBEGIN: a macro, because C++20 cannot name a struct's fields.
#define WEFT_CODEC(Struct, ...)                                                      \
  [[maybe_unused]] constexpr std::string_view weft_name(Struct*) { return #Struct; } \
  [[maybe_unused]] constexpr auto weft_fields(Struct*) {                             \
    return std::tuple{WEFT_DETAIL_EACH(WEFT_DETAIL_FIELD, Struct, __VA_ARGS__)};     \
  }

#define WEFT_DETAIL_FIELD(Struct, name) \
  ::weft::rpc::detail::FieldOf<Struct, decltype(Struct::name)> { #name, &Struct::name }
#define WEFT_DETAIL_PARENS ()
#define WEFT_DETAIL_EXPAND(...) \
  WEFT_DETAIL_EXPAND4(WEFT_DETAIL_EXPAND4(WEFT_DETAIL_EXPAND4(WEFT_DETAIL_EXPAND4(__VA_ARGS__))))
#define WEFT_DETAIL_EXPAND4(...) \
  WEFT_DETAIL_EXPAND3(WEFT_DETAIL_EXPAND3(WEFT_DETAIL_EXPAND3(WEFT_DETAIL_EXPAND3(__VA_ARGS__))))
#define WEFT_DETAIL_EXPAND3(...) \
  WEFT_DETAIL_EXPAND2(WEFT_DETAIL_EXPAND2(WEFT_DETAIL_EXPAND2(WEFT_DETAIL_EXPAND2(__VA_ARGS__))))
#define WEFT_DETAIL_EXPAND2(...) __VA_ARGS__
#define WEFT_DETAIL_EACH(macro, context, ...) \
  __VA_OPT__(WEFT_DETAIL_EXPAND(WEFT_DETAIL_STEP(macro, context, __VA_ARGS__)))
#define WEFT_DETAIL_STEP(macro, context, first, ...) \
  macro(context, first) __VA_OPT__(, WEFT_DETAIL_AGAIN WEFT_DETAIL_PARENS(macro, context, __VA_ARGS__))
#define WEFT_DETAIL_AGAIN() WEFT_DETAIL_STEP
// NOLINTEND
