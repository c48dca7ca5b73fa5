#include "tools/weft/launch/descendants.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

namespace weft::tool::launch {
namespace {

struct Entry {
  char state = 'X';
  pid_t parent = 0;
};

// Parses /proc/PID/stat: "PID (name) state parent …". The name may contain any characters.
Entry entry_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 >= text.size()) return {};
  return {text[name_end + 2], static_cast<pid_t>(std::strtol(text.c_str() + name_end + 4, nullptr, 10))};
}

}  // namespace

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  std::map<pid_t, char> states;
  DIR* const folder = ::opendir("/proc");
  if (folder == nullptr) return {};
  while (const dirent* const found = ::readdir(folder)) {
    const std::string name = found->d_name;
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const Entry entry = entry_of(name);
    const pid_t pid = static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10));
    children.emplace(entry.parent, pid);
    states[pid] = entry.state;
  }
  ::closedir(folder);
  std::vector<pid_t> found, open{::getpid()};
  while (!open.empty()) {
    const auto [begin, end] = children.equal_range(open.back());
    open.pop_back();
    for (auto child = begin; child != end; ++child) {
      open.push_back(child->second);
      if (states[child->second] != 'Z' && states[child->second] != 'X') found.push_back(child->second);
    }
  }
  return found;
}

void kill_descendants() {
  // A process may start children before it is killed. When it has ended, its children are descendants of this
  // process, so the next iteration finds them.
  for (auto left = descendants(); !left.empty(); left = descendants()) {
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    ::waitpid(-1, nullptr, 0);
  }
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace weft::tool::launch
