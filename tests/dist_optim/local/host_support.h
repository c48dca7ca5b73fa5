// Shared by the tests of ParameterHost.
#pragma once

#include <weft/dist_optim/local/parameter_host.h>

#include <string>

namespace weft::dist_optim {

// A trainer's handle ends, and the round that it was missing from is applied.
inline void unregister_trainer(ParameterHost& host, const std::string& trainer, bool died) {
  host.strike_off(trainer, died);
  host.close_rounds();
}

}  // namespace weft::dist_optim
