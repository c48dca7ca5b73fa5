#include <weft/rpc/core/process_id.h>

#include <weft/rpc/core/fixed_string.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace weft::rpc {
namespace {

// Field 22 of /proc/PID/stat. The second field, the program's name in parentheses, may contain any
// characters. 0: the process does not exist. If the parent collects the process after the file was opened,
// reading fails: getline() then sets the state of the stream, whereas an istreambuf_iterator would throw.
std::uint64_t start_of(std::uint32_t number) {
  std::ifstream file("/proc/" + std::to_string(number) + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i)
    if (!(fields >> field)) return 0;
  return std::strtoull(field.c_str(), nullptr, 10);
}

}  // namespace

ProcessId own_process() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  std::error_code unknown;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", unknown).string();
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", unknown).string();
  const auto number = static_cast<std::uint32_t>(::getpid());
  const std::uint64_t started = start_of(number);
  if (boot.empty() || space.empty() || started == 0) return {};
  return {name_hash(boot + space) | 1, number, started, network.empty() ? 0 : name_hash(boot + network) | 1};
}

int open_process(const ProcessId& process) {
  const long descriptor = ::syscall(SYS_pidfd_open, static_cast<pid_t>(process.number), 0U);
  if (descriptor < 0) return errno == ESRCH ? -1 : -2;
  // The start time is checked after pidfd_open(): from then on the descriptor cannot refer to another process
  // with this number.
  if (start_of(process.number) == process.started) return static_cast<int>(descriptor);
  ::close(static_cast<int>(descriptor));
  return -1;
}

}  // namespace weft::rpc
