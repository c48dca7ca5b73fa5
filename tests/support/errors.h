// Catches weft's Error from an expression that should throw.
#pragma once

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <optional>
#include <string>

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

}  // namespace weft::test

namespace weft::rpc {
inline void PrintTo(ErrorKind kind, std::ostream* out) { *out << to_string(kind); }
}  // namespace weft::rpc
