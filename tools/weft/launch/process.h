// spawn(): starts one worker's process.
//
// The process inherits a pipe as descriptor `liveness_file`. The closing of this pipe shows that the process
// begins to end: the system closes descriptors in order, so it closes the pipe before all sockets, and long
// before the kernel reports the end of the process. The process is in its own process group, has the default
// signal dispositions, and inherits only the given descriptors. When the thread that started the process
// ends, the process gets SIGKILL. The caller may have threads.
#pragma once

#include <weft/rpc/core/descriptor.h>

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace weft::tool::launch {

// Searches PATH for the file of a command, as a shell does. Throws UsageError if no file is found.
std::string find_program(const std::string& name);

// The variables of this process with these changes, each as "NAME=value". An empty value removes a variable.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes);

inline constexpr int liveness_file = 3;

struct ProcessStart {
  std::string program;                 // the path of a file
  std::vector<std::string> words;      // argv, the name first
  std::vector<std::string> variables;  // all variables of the process
  std::vector<unsigned> cores;         // empty: the cores of this process
  int out = -1, error = -1;            // its standard output and error
  int in = -1;                         // its standard input; -1: empty
  int liveness = -1;                   // the writing end of the liveness pipe
};

struct Pipe {
  rpc::Descriptor read, write;
};
Pipe make_pipe();  // close-on-exec. Throws system_error

// Throws UsageError if the file cannot be run, system_error if the system cannot create a process.
pid_t spawn(const ProcessStart& start);

}  // namespace weft::tool::launch
