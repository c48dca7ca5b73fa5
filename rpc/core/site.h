// Site: the place of a call in the user's program, which errors and flight records show as "train.cc:12".
//
// Functions that show it have a last parameter `Site site = Site::current()`, which callers leave at its
// default. A binding of another language passes the place in that language with in_file().
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>

namespace weft::rpc {

class Site {
 public:
  Site() = default;  // an unknown place
  Site(const std::source_location& at) : file_(at.file_name()), line_(at.line()) {}
  static Site current(std::source_location at = std::source_location::current()) { return at; }
  // file: a path, of which text() shows the last part. The site keeps a copy.
  static Site in_file(std::string file, std::uint32_t line) {
    Site site;
    const auto kept = std::make_shared<const std::string>(std::move(file));
    site.file_ = *kept;
    site.line_ = line;
    site.owner_ = kept;
    return site;
  }

  // Whether the place is known, and the place: "train.cc:12", or "an unknown place".
  bool known() const { return line_ != 0; }
  std::string text() const {
    if (!known()) return "an unknown place";
    return std::string(file_.substr(file_.rfind('/') + 1)) + ":" + std::to_string(line_);
  }

 private:
  std::string_view file_;
  std::uint32_t line_ = 0;
  std::shared_ptr<const void> owner_;  // of file_; null: a literal
};

}  // namespace weft::rpc
