// The parts of the launcher that process the output of workers: whole lines, each with the worker's name
// before it.
//
// Thread-safety: none; each object is used by one thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace weft::tool::launch {

// Cuts a stream of bytes into lines. A carriage return restarts the line, as on a terminal, so that only the
// last state of a progress bar remains. A line that is too long is cut.
class LineCutter {
 public:
  static constexpr std::size_t longest = 1 << 16;
  using TakeLine = std::function<void(std::string_view line)>;  // line: without its end

  void take(std::string_view bytes, const TakeLine& line);
  void end(const TakeLine& line);  // passes on an incomplete line, unless it is empty

 private:
  std::string begun_;
  bool returned_ = false;  // the last byte was a carriage return
};

// The last lines of an output, for a report.
class LastLines {
 public:
  static constexpr std::size_t most = 10;

  void take(std::string_view line);                  // empty lines are omitted
  const std::string& text() const { return text_; }  // the lines, each with its end

 private:
  std::string text_;
  std::size_t lines_ = 0;
};

// Writes all bytes, and blocks while the reader is slow. false: the file has no reader any more.
bool write_all(int file, std::string_view bytes);

}  // namespace weft::tool::launch
