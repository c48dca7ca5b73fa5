// The errors of a pass after the loss of a participant: all of them are peer_lost and name the pass and the
// agent, whether the connection ended during the call or before it. Thread-safety: functions.
#pragma once

#include <weft/dist_autograd/ids.h>
#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/future.h>

namespace weft::dist_autograd {

// The error of a pass that has lost `agent`. why: the observation that proves the loss, as text.
std::exception_ptr participant_lost(const PassId& pass, const rpc::AgentId& agent, const std::string& why);

// Converts the error of a call to a participant into the error of its pass: participant_lost() for
// `unavailable`, because the connection had already ended; any other error unchanged.
std::exception_ptr explain_participant(const PassId& pass, const rpc::AgentId& agent,
                                       std::exception_ptr error);

// Applies explain_participant() to the error of the future of a call.
template <class T>
rpc::Future<T> of_participant(const PassId& pass, const rpc::AgentId& agent, rpc::Future<T> future) {
  return future.then([pass, agent](rpc::Result<T>&& result) -> rpc::Result<T> {
    if (!result.ok()) return explain_participant(pass, agent, result.error());
    return std::move(result);
  });
}

}  // namespace weft::dist_autograd
