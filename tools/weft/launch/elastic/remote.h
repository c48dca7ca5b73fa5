// How a worker is started on another host: RSH HOST COMMAND runs a shell command there, as ssh does.
//
// The command is `weft launch --attached`, which runs the worker below itself and ends it, with all that it
// has started, when standard input ends. So a worker ends with its connection, its driver, and on request.
// Pure, except is_this_host(). Thread-safety: none needed.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace weft::tool::launch::elastic {

struct RemoteWorker {
  std::string folder;                            // where it runs
  std::map<std::string, std::string> variables;  // an empty value takes a variable away
  std::string weft;                              // the program `weft` on that host
  std::string grace;                             // of --grace
  std::vector<std::string> command;
  std::vector<std::string> options = {};  // more of them for `weft launch --attached`
};

// `weft launch --attached ...`, without its folder and variables.
std::vector<std::string> attached_words(const RemoteWorker& worker);
// The shell command that RSH gets.
std::string remote_command(const RemoteWorker& worker);

// Of --rsh: "ssh", "srun" (a step of the Slurm job on that node), "kubectl" (in that pod), or a command line
// of one's own, whose words are separated by spaces and which gets HOST and the shell command as its last two
// words. Throws UsageError.
std::vector<std::string> rsh_words(const std::string& rsh, const std::string& host,
                                   const std::string& command);

// localhost, an address of loopback, or a name of this host.
bool is_this_host(const std::string& host);

}  // namespace weft::tool::launch::elastic
