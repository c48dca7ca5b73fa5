// seconds_text(): a duration for messages, such as "0.05 s".
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace weft::rpc {

inline std::string seconds_text(std::chrono::nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace weft::rpc
