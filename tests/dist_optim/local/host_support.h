// Shared by the tests of ParameterHost.
#pragma once

#include <weft/dist_optim/local/parameter_host.h>

#include <string>

namespace weft::dist_optim {

// Ends a trainer's handle. This applies the round that waited for it.
inline void unregister_trainer(ParameterHost& host, const std::string& trainer, bool died) {
  host.strike_off(trainer, died);
  host.close_rounds();
}

}  // namespace weft::dist_optim
