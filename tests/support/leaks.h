// The descriptors and shared memory of a process, for a comparison before and after a test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace weft::test {

class Leaks {
 public:
  Leaks() {  // counts
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // the descriptor of the iterator
      const std::string target = std::filesystem::read_symlink(entry.path(), gone);
      if (!gone && target.find("/proc/") != 0) ++descriptors_[target.substr(0, target.find(':'))];
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find("memfd:") != std::string::npos) ++mappings_[line.substr(line.find("memfd:"))];
  }

  std::size_t mappings_of(const std::string& name) const {
    std::size_t count = 0;
    for (const auto& [mapped, times] : mappings_)
      if (mapped.find(name) != std::string::npos) count += times;
    return count;
  }
  bool operator==(const Leaks&) const = default;
  void expect_the_same() const {
    const Leaks now;
    EXPECT_EQ(now.descriptors_, descriptors_);
    EXPECT_EQ(now.mappings_, mappings_);
  }

 private:
  std::map<std::string, std::size_t> descriptors_;  // by kind, because the number of a socket is unique
  std::map<std::string, std::size_t> mappings_;     // of memfds
};

}  // namespace weft::test
