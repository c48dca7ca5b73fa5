#include "bench/harness/progress.h"

#include <unistd.h>

#include <cstdio>

namespace weft::bench {
namespace {

constexpr auto between_lines = std::chrono::seconds{5};
constexpr const char* clear_line = "\r\033[K";

}  // namespace

Progress::Progress(std::size_t steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::step(const std::string& what) {
  const auto now = Clock::now();
  const std::size_t done = begun_++;
  if (!terminal_ && now - printed_ < between_lines) return;
  printed_ = now;
  std::string left;
  if (done != 0) {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>((now - started_) / done * (steps_ - done));
    left = ", " + std::to_string(seconds.count()) + " s left";
  }
  std::fprintf(stderr, "%s[%zu/%zu%s] %s%s", terminal_ ? clear_line : "", begun_, steps_, left.c_str(),
               what.c_str(), terminal_ ? "" : "\n");
  std::fflush(stderr);
}

void Progress::remark(const std::string& text) {
  std::fprintf(stderr, "%s%s\n", terminal_ ? clear_line : "", text.c_str());
}

void Progress::finish() {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - started_);
  remark(std::to_string(begun_) + " measurements in " + std::to_string(seconds.count()) + " s");
}

}  // namespace weft::bench
