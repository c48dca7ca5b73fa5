// Code that must throw weft's Error.
#pragma once

#include <string>
#include <utility>

#include "tests/support/errors.h"

namespace weft::dist_optim {

inline void check_refusal(const std::optional<rpc::Error>& error, rpc::ErrorKind kind,
                          const std::string& words) {
  ASSERT_TRUE(error) << "no error " << words;
  EXPECT_EQ(error->kind(), kind) << error->what();
  EXPECT_NE(std::string(error->what()).find(words), std::string::npos) << error->what();
}

// Checks the kind of the error, and that its text contains `words`. Returns the text.
template <class F>
std::string refusal(rpc::ErrorKind kind, F&& code, const std::string& words = "") {
  const auto error = test::error_of(std::forward<F>(code));
  check_refusal(error, kind, words);
  return error ? error->what() : "";
}

template <class F>
std::string refusal(F&& code, const std::string& words = "") {
  return refusal(rpc::ErrorKind::invalid_argument, std::forward<F>(code), words);
}

}  // namespace weft::dist_optim
