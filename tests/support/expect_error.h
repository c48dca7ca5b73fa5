// Expects weft's Error from an expression that should throw.
#pragma once

#include <gtest/gtest.h>

#include <concepts>
#include <string>
#include <vector>

#include "tests/support/errors.h"

namespace weft::test {

// The text of the error contains `part`.
template <std::invocable F>
void expect_error(F&& f, const std::string& part) {
  const auto error = error_of(std::forward<F>(f));
  ASSERT_TRUE(error) << "expected an error with: " << part;
  EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << part << " in: " << error->what();
}

// The text of the error contains each of the parts.
template <std::invocable F>
void expect_error(F&& f, rpc::ErrorKind kind, const std::vector<std::string>& parts) {
  const auto error = error_of(std::forward<F>(f));
  ASSERT_TRUE(error) << "expected the error " << to_string(kind);
  EXPECT_EQ(error->kind(), kind) << error->what();
  for (const std::string& part : parts)
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << part << " in: " << error->what();
}
template <std::invocable F, std::convertible_to<std::string>... Parts>
void expect_error(F&& f, rpc::ErrorKind kind, const Parts&... parts) {
  expect_error(std::forward<F>(f), kind, std::vector<std::string>{parts...});
}

}  // namespace weft::test
