// spawn(): starts one worker's process.
//
// A pipe that the process inherits as descriptor `liveness_file` tells when it begins to end: the system
// closes descriptors in order, so that one before all sockets, and long before the kernel reports the end. It
// is in its own process group, has the system's usual signals, no descriptor of the launcher but those
// that it is given, and dies (SIGKILL) with the thread that started it. The caller may have threads.
#pragma once

#include <weft/rpc/transport/shm/descriptor.h>

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace weft::tool::launch {

// The file of a command's name, found in PATH as shells do it. Throws UsageError if no file is found.
std::string find_program(const std::string& name);

// This process's variables with these changes; an empty value takes one away. "NAME=value" each.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes);

inline constexpr int liveness_file = 3;

struct ProcessStart {
  std::string program;                 // a file
  std::vector<std::string> words;      // argv, the name first
  std::vector<std::string> variables;  // all of them
  std::vector<unsigned> cores;         // empty: as this process
  int out = -1, error = -1;            // its standard output and error
  int in = -1;                         // its standard input; -1: empty
  int liveness = -1;                   // the writing end of that pipe
};

struct Pipe {
  rpc::Descriptor read, write;
};
Pipe make_pipe();  // close-on-exec. Throws system_error

// Throws UsageError where the file cannot be run, system_error where the system has no process for it.
pid_t spawn(const ProcessStart& start);

}  // namespace weft::tool::launch
