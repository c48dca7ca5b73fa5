// site_text(): a source location for users, "train.cc:12".
#pragma once

#include <source_location>
#include <string>
#include <string_view>

namespace weft::rpc {

inline std::string site_text(const std::source_location& site) {
  const std::string_view path = site.file_name();
  return std::string(path.substr(path.rfind('/') + 1)) + ":" + std::to_string(site.line());
}

}  // namespace weft::rpc
