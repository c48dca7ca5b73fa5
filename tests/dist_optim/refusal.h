// Code that must throw weft's Error.
#pragma once

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace weft::dist_optim {

// Checks the kind of the error, and that its text contains `words`. Returns the text.
template <class F>
std::string refusal(rpc::ErrorKind kind, F&& code, const std::string& words = "") {
  try {
    (void)code();
  } catch (const rpc::Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error " << words;
  return "";
}

template <class F>
std::string refusal(F&& code, const std::string& words = "") {
  return refusal(rpc::ErrorKind::invalid_argument, std::forward<F>(code), words);
}

}  // namespace weft::dist_optim
