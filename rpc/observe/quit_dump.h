// QuitDump: on SIGQUIT (Ctrl-\, kill -QUIT), prints the calls in flight of an agent to stderr; the process
// continues.
//
// While a QuitDump exists, SIGQUIT does not end the process. A QuitDump belongs to one agent; each agent of a
// process can have its own. A QuitDump has its own thread, so it prints even if the agent's loops and
// handlers hang. It reports loops that do not answer within a second. It does not keep the agent alive.
// Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>

#include <functional>
#include <memory>
#include <string>

namespace weft::observe {

class WEFT_EXPORT QuitDump {
 public:
  // Receives the text. Called on the dump's thread.
  using Print = std::function<void(const std::string& lines)>;
  explicit QuitDump(rpc::Agent& agent, Print print = nullptr);  // null: prints to stderr
  ~QuitDump();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::observe
