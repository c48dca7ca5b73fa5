// QuitDump: SIGQUIT (Ctrl-\, kill -QUIT) prints an agent's calls under way to stderr, and the process goes
// on.
//
// While one lives, SIGQUIT no longer ends the process. Of one agent; several agents of a process each have
// one. It has a thread of its own, so it prints while the agent's loops and handlers hang: of loops that do
// not answer within a second it says so. Lives beside the agent and does not keep it. Thread-safe.
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
  explicit QuitDump(rpc::Agent& agent, Print print = nullptr);  // null: to stderr
  ~QuitDump();
  QuitDump(const QuitDump&) = delete;
  QuitDump& operator=(const QuitDump&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::observe
