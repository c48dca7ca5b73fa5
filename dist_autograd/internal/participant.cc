#include <weft/dist_autograd/internal/participant.h>

namespace weft::dist_autograd {

std::exception_ptr participant_lost(const PassId& pass, const rpc::AgentId& agent, const std::string& why) {
  return std::make_exception_ptr(rpc::Error(
      rpc::ErrorKind::peer_lost, to_string(pass) + ": " + agent.name + " took part and is gone: " + why));
}

std::exception_ptr explain_participant(const PassId& pass, const rpc::AgentId& agent,
                                       std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const rpc::RemoteError&) {  // the peer exists, and answers
  } catch (const rpc::Error& own) {
    // unavailable: its connection had ended already, and no agent accepts another connection.
    if (own.kind() == rpc::ErrorKind::unavailable) return participant_lost(pass, agent, own.what());
  } catch (...) {
  }
  return error;
}

}  // namespace weft::dist_autograd
