// Starts a worker on another host: RSH HOST COMMAND runs a shell command there, as ssh does.
//
// The command is `weft launch --attached`. This command runs the worker as a child. When standard input ends,
// the command ends the worker and all processes that the worker has started. So a worker ends with its
// connection, with its driver, and on request. Thread-safety: pure functions, except is_this_host(), which
// any thread may call.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace weft::tool::launch::elastic {

struct RemoteWorker {
  std::string folder;                            // the working directory
  std::map<std::string, std::string> variables;  // an empty value removes a variable
  std::string weft;                              // the program `weft` on that host
  std::string grace;                             // the value of --grace
  std::vector<std::string> command;
  std::vector<std::string> options = {};  // further options for `weft launch --attached`
};

// The words of `weft launch --attached ...`, without the folder and the variables.
std::vector<std::string> attached_words(const RemoteWorker& worker);
// The shell command that is passed to RSH. The command reads the variables from standard input
// (remote_input()): other users of both hosts can read command lines.
std::string remote_command(const RemoteWorker& worker);
std::string remote_input(const RemoteWorker& worker);

// The command line for a value of --rsh: "ssh", "srun" (a step of the Slurm job on that node), "kubectl" (in
// that pod), or another command line with spaces between its words, to which HOST and the shell command are
// appended. Throws UsageError if the value is invalid.
std::vector<std::string> rsh_words(const std::string& rsh, const std::string& host,
                                   const std::string& command);

// Whether `host` is localhost, a loopback address, or a name of this host.
bool is_this_host(const std::string& host);

}  // namespace weft::tool::launch::elastic
