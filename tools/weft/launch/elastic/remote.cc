#include "tools/weft/launch/elastic/remote.h"

#include <unistd.h>

#include <sstream>

#include "tools/weft/errors.h"
#include "tools/weft/shell.h"

namespace weft::tool::launch::elastic {

std::vector<std::string> attached_words(const RemoteWorker& worker) {
  std::vector<std::string> words{worker.weft, "launch", "--attached", "--grace", worker.grace};
  words.insert(words.end(), worker.options.begin(), worker.options.end());
  words.push_back("--");
  words.insert(words.end(), worker.command.begin(), worker.command.end());
  return words;
}

std::string remote_command(const RemoteWorker& worker) {
  std::string text = "cd " + shell_word(worker.folder) + " && exec env";
  for (const auto& [name, value] : worker.variables)
    if (value.empty()) text += " -u " + shell_word(name);
  // Lines NAME=VALUE up to an empty line. The shell reads no byte further, so the rest of the input is that
  // of the program. The point keeps line breaks at the end of a value.
  text += " sh -c " +
          shell_word(R"(while IFS= read -r v && [ -n "$v" ]; do v=$(printf %b. "$v"); )"
                     R"(export "${v%.}"; done; unset v; exec "$@")") +
          " sh";
  for (const std::string& word : attached_words(worker)) text += " " + shell_word(word);
  return text;
}

std::string remote_input(const RemoteWorker& worker) {
  std::string text;
  for (const auto& [name, value] : worker.variables) {
    if (value.empty()) continue;
    text += name + "=";
    for (const char c : value) text += c == '\\' ? "\\\\" : c == '\n' ? "\\n" : std::string(1, c);
    text += "\n";
  }
  return text + "\n";
}

std::vector<std::string> rsh_words(const std::string& rsh, const std::string& host,
                                   const std::string& command) {
  if (rsh == "ssh")  // with these options, ssh detects after 15 s that the host is lost or does not answer
    return {"ssh",
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=15",
            "-o",
            "ServerAliveInterval=5",
            "-o",
            "ServerAliveCountMax=3",
            "--",
            host,
            command};
  if (rsh == "srun")
    return {"srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=" + host, "sh", "-c", command};
  if (rsh == "kubectl") return {"kubectl", "exec", "--stdin", host, "--", "sh", "-c", command};
  std::istringstream text(rsh);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  if (words.empty()) throw UsageError("--rsh: the command is empty");
  words.push_back(host);
  words.push_back(command);
  return words;
}

bool is_this_host(const std::string& host) {
  if (host == "localhost" || host == "::1" || host.starts_with("127.")) return true;
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0) return false;
  const std::string own = name;
  const auto short_form = [](const std::string& of) { return of.substr(0, of.find('.')); };
  // A short name matches the full name, but two full names with different domains differ.
  return host == own || (short_form(host) == short_form(own) &&
                         (host.find('.') == std::string::npos || own.find('.') == std::string::npos));
}

}  // namespace weft::tool::launch::elastic
