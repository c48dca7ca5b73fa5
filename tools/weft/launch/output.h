// What workers print, as the launcher passes it on: whole lines, each with the worker's name before it.
//
// Thread-safety: none needed.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace weft::tool::launch {

// Cuts a stream of bytes into lines. A carriage return begins the line anew, as on a terminal, so that of a
// progress bar its last state is left. A line without an end is cut where it gets too long.
class LineCutter {
 public:
  static constexpr std::size_t longest = 1 << 16;
  using TakeLine = std::function<void(std::string_view line)>;  // without its end

  void take(std::string_view bytes, const TakeLine& line);
  void end(const TakeLine& line);  // what has no end yet is a line too, unless it is empty

 private:
  std::string begun_;
  bool returned_ = false;  // the last byte was a carriage return
};

// The last lines of an output, for a report.
class LastLines {
 public:
  static constexpr std::size_t most = 10;

  void take(std::string_view line);                  // empty ones are left out
  const std::string& text() const { return text_; }  // each with its end

 private:
  std::string text_;
  std::size_t lines_ = 0;
};

// Writes all of it, waiting where the reader is slow; false: nobody reads any more.
bool write_all(int file, std::string_view bytes);

}  // namespace weft::tool::launch
