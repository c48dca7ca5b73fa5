// The storm reads the output of the workers, and acts as a user and a cluster do: it sends signals, and
// changes the number of slots that the discovery of the launcher prints. The storm makes a change when the
// workers print a row of the history. It makes the next change only after the workers have agreed on a newer
// generation, so at least one worker always keeps the state.
#include "elastic_train/storm.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>

#include "elastic_train/history.h"

namespace fs = std::filesystem;

namespace {

constexpr int min_workers = 2, max_workers = 4;

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// The file with the number of slots, which the launcher's discovery prints.
class Slots {
 public:
  explicit Slots(const std::string& folder) : path_(folder + "/hosts") {
    fs::create_directories(folder);
    set(max_workers - 1);
  }
  const std::string& path() const { return path_; }
  int number() const { return number_; }
  void set(int number) {
    std::ofstream(path_ + ".new") << "localhost:" << number << "\n";
    fs::rename(path_ + ".new", path_);
    number_ = number;
  }

 private:
  const std::string path_;
  int number_ = 0;
};

class Storm {
 public:
  Storm(const Settings& settings, Slots& slots, LivePicture& picture)
      : settings_(settings), slots_(slots), picture_(picture), random_(settings.storm) {}
  ~Storm() {
    for (const auto& worker : processes_) ::close(worker.second);
  }
  Storm(const Storm&) = delete;
  Storm& operator=(const Storm&) = delete;

  void see(const std::string& line) {
    if (const auto row = row_of(line)) {
      picture_.add(*row);
      const auto due = settings_.steps() * (made_ + 1) / (settings_.changes + 1);
      if (made_ < settings_.changes && row->step >= due && row->generation > changed_ &&
          row->workers.size() > 1)
        change(*row);
      return;
    }
    char name[64];
    int pid = 0;
    if (std::sscanf(line.c_str(), "%63s (process %d) begins generation", name, &pid) == 2)
      return meet(name, pid);
    // Of all reports of the launcher and the agents, shows only the failure of the job.
    const bool is_report = line.starts_with("weft: ") || line.starts_with("    ");
    if (!is_report || line.starts_with("weft: the job")) picture_.add_note(line);
  }
  int made() const { return made_; }

 private:
  void meet(const std::string& worker, int pid) {
    // Unlike a number, a descriptor never refers to a later process.
    const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (const auto known = processes_.find(worker); known != processes_.end()) ::close(known->second);
    processes_[worker] = descriptor;
  }
  void send(const std::string& worker, int number) {
    ::syscall(SYS_pidfd_send_signal, processes_.at(worker), number, nullptr, 0);
  }

  void change(const Row& row) {
    auto workers = row.workers;
    std::shuffle(workers.begin(), workers.end(), random_);
    const std::string last = fmt::format("worker{}", slots_.number() - 1);
    const bool last_trains = std::find(workers.begin(), workers.end(), last) != workers.end();
    std::string what;
    switch (random_() % 5) {
      case 0:
        if (workers.size() > 2) {
          what = fmt::format("kill {} and {}", workers[0], workers[1]);
          send(workers[0], SIGKILL);
          send(workers[1], SIGKILL);
          break;
        }
        [[fallthrough]];
      case 1:
        what = "kill " + workers[0];
        send(workers[0], SIGKILL);
        break;
      case 2:
        what = "stop " + workers[0];
        send(workers[0], SIGTERM);
        break;
      default:
        if (slots_.number() < max_workers) {
          what = fmt::format("add worker{}", slots_.number());
          slots_.set(slots_.number() + 1);
        } else if (last_trains) {
          what = "remove " + last;
          slots_.set(slots_.number() - 1);
        } else {
          return;  // tries again after the next row
        }
    }
    changed_ = row.generation;
    picture_.add_note(fmt::format("storm {} of {}, step {}: {}", ++made_, settings_.changes, row.step, what));
  }

  const Settings& settings_;
  Slots& slots_;
  LivePicture& picture_;
  std::mt19937_64 random_;
  int made_ = 0;
  std::uint64_t changed_ = 0;             // the generation of the last change
  std::map<std::string, int> processes_;  // descriptors
};

std::string weft_program(const Settings& settings) {
  if (!settings.weft.empty()) return settings.weft;
  const fs::path built = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin/weft";
  return fs::exists(built) ? built.string() : "weft";
}

}  // namespace

int run_storm(int argc, char** argv, const Settings& settings) {
  Slots slots(settings.out);
  // The storm causes the failures, so the host must not be blacklisted for them.
  std::string command = fmt::format(
      "exec {} launch --plain --min {} --max {} --discovery {} --poll 0.2s --host-failures 1000000 {}",
      quoted(weft_program(settings)), min_workers, max_workers, quoted("cat " + quoted(slots.path())),
      quoted(fs::read_symlink("/proc/self/exe").string()));
  for (int i = 1; i < argc; ++i) command += " " + quoted(argv[i]);
  LivePicture picture(settings.steps());
  Storm storm(settings, slots, picture);
  FILE* const output = ::popen((command + " 2>&1").c_str(), "r");
  if (output == nullptr) throw std::runtime_error("cannot start a shell");
  char* line = nullptr;
  std::size_t capacity = 0;
  for (ssize_t size; (size = ::getline(&line, &capacity, output)) > 0;)
    storm.see(std::string(line, static_cast<std::size_t>(line[size - 1] == '\n' ? size - 1 : size)));
  std::free(line);
  const int status = ::pclose(output);
  if (storm.made() < settings.changes)
    fmt::print("the training has ended after {} of {} changes\n", storm.made(), settings.changes);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
