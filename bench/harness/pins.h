// Pins: the only cores on which each process of a measurement may run. Thread-safety: a value; apply()
// affects the calling thread and the threads that it starts later.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::bench {

class Pins {
 public:
  Pins() = default;  // none: the system chooses
  // "0/1": process 0 on core 0, process 1 on core 1; "0-1/2,3"; "none". Throws std::invalid_argument.
  static Pins parse(std::string_view text);
  // One of the given cores per process. If there are more processes than cores, the cores are reused in
  // order.
  static Pins one_each(const std::vector<int>& cores, std::size_t processes);

  // Pins the process with this number. Throws std::system_error if a core is not available.
  void apply(std::size_t process) const;
  std::string text() const;

 private:
  std::vector<std::vector<int>> cores_;  // by process; if there are more processes, the list is repeated
};

std::vector<int> allowed_cores();  // the cores on which this process may run

}  // namespace weft::bench
