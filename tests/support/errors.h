// Catches weft's Error from an expression that should throw, and checks it.
#pragma once

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <concepts>
#include <initializer_list>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

namespace weft::test {

template <class F>
std::optional<rpc::Error> error_of(F&& f) {
  try {
    (void)f();
  } catch (const rpc::Error& error) {
    return error;
  }
  return std::nullopt;
}

template <class F>
std::optional<rpc::ErrorKind> kind_of(F&& f) {
  const auto error = error_of(std::forward<F>(f));
  return error ? std::optional(error->kind()) : std::nullopt;
}

template <class F>
std::string message_of(F&& f) {
  const auto error = error_of(std::forward<F>(f));
  return error ? error->what() : "(no error)";
}

// What the text of an expected error has: each of the parts. A whole() text must be equal.
struct ErrorText {
  ErrorText() = default;
  ErrorText(const char* part) : parts{part} {}
  ErrorText(std::string part) : parts{std::move(part)} {}
  ErrorText(std::initializer_list<std::string> all) : parts(all) {}
  ErrorText(std::vector<std::string> all) : parts(std::move(all)) {}
  std::vector<std::string> parts;
  bool whole = false;
};
inline ErrorText whole(std::string text) {
  ErrorText whole(std::move(text));
  whole.whole = true;
  return whole;
}
inline void expect_text(const rpc::Error& error, const ErrorText& expected) {
  const std::string text = error.what();
  for (const std::string& part : expected.parts) {
    if (expected.whole) {
      EXPECT_EQ(text, part);
    } else {
      EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
    }
  }
}

// What code has thrown is an Error with this text, and of this kind and execution if they are given.
inline void expect_thrown(const std::optional<rpc::Error>& error, std::optional<rpc::ErrorKind> kind,
                          std::optional<rpc::Execution> execution, const ErrorText& text,
                          std::source_location at) {
  const testing::ScopedTrace trace(at.file_name(), static_cast<int>(at.line()), "expect_error");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), kind.value_or(error->kind())) << error->what();
  EXPECT_EQ(error->execution(), execution.value_or(error->execution())) << error->what();
  expect_text(*error, text);
}

// Expects that f throws an Error with this text, of this kind and execution.
template <std::invocable F>
void expect_error(F&& f, const ErrorText& text, std::source_location at = std::source_location::current()) {
  expect_thrown(error_of(std::forward<F>(f)), std::nullopt, std::nullopt, text, at);
}
template <std::invocable F>
void expect_error(F&& f, rpc::ErrorKind kind, const ErrorText& text = {},
                  std::source_location at = std::source_location::current()) {
  expect_thrown(error_of(std::forward<F>(f)), kind, std::nullopt, text, at);
}
template <std::invocable F>
void expect_error(F&& f, rpc::ErrorKind kind, rpc::Execution execution, const ErrorText& text = {},
                  std::source_location at = std::source_location::current()) {
  expect_thrown(error_of(std::forward<F>(f)), kind, execution, text, at);
}

}  // namespace weft::test

namespace weft::rpc {
inline void PrintTo(ErrorKind kind, std::ostream* out) { *out << to_string(kind); }
}  // namespace weft::rpc
