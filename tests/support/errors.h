// Catches weft's Error from an expression that should throw, and checks it.
#pragma once

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <concepts>
#include <optional>
#include <source_location>
#include <string>
#include <utility>

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

// The text of an expected error: the whole text, a part of it, or any text.
struct ErrorText {
  ErrorText() = default;
  ErrorText(const char* t) : text(t), whole(true) {}
  ErrorText(std::string t) : text(std::move(t)), whole(true) {}
  std::string text;
  bool whole = false;
};
inline ErrorText part(std::string text) {
  ErrorText part(std::move(text));
  part.whole = false;
  return part;
}

// Expects that f throws an Error of this kind and text.
template <std::invocable F>
void expect_error(F&& f, rpc::ErrorKind kind, const ErrorText& text = {},
                  std::source_location at = std::source_location::current()) {
  const testing::ScopedTrace trace(at.file_name(), static_cast<int>(at.line()), "expect_error");
  const auto error = error_of(std::forward<F>(f));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), kind) << error->what();
  if (text.whole) {
    EXPECT_EQ(std::string(error->what()), text.text);
  } else {
    EXPECT_NE(std::string(error->what()).find(text.text), std::string::npos) << error->what();
  }
}
template <std::invocable F>
void expect_error(F&& f, rpc::ErrorKind kind, rpc::Execution execution, const ErrorText& text = {},
                  std::source_location at = std::source_location::current()) {
  const auto check = [&] {
    try {
      (void)f();
    } catch (const rpc::Error& error) {
      EXPECT_EQ(error.execution(), execution) << at.file_name() << ":" << at.line() << ": " << error.what();
      throw;
    }
  };
  expect_error(check, kind, text, at);
}

}  // namespace weft::test

namespace weft::rpc {
inline void PrintTo(ErrorKind kind, std::ostream* out) { *out << to_string(kind); }
}  // namespace weft::rpc
