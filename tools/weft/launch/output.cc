#include "tools/weft/launch/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace weft::tool::launch {

void LineCutter::take(std::string_view bytes, const TakeLine& line) {
  for (const char byte : bytes) {
    if (byte == '\n') {
      line(begun_);
      begun_.clear();
    } else if (byte != '\r') {
      if (returned_) begun_.clear();
      begun_ += byte;
      if (begun_.size() == longest) {
        line(begun_);
        begun_.clear();
      }
    }
    returned_ = byte == '\r';
  }
}

void LineCutter::end(const TakeLine& line) {
  if (!begun_.empty()) line(std::exchange(begun_, {}));
}

void LastLines::take(std::string_view line) {
  constexpr std::size_t longest = 1000;
  if (line.find_first_not_of(" \t") == std::string_view::npos) return;
  text_ += line.substr(0, longest);
  text_ += line.size() > longest ? "…\n" : "\n";
  if (++lines_ > most) {
    text_.erase(0, text_.find('\n') + 1);
    --lines_;
  }
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {  // a terminal or pipe that another program has made non-blocking
      pollfd ready{file, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace weft::tool::launch
