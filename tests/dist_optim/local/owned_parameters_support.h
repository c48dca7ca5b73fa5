// Shared by the tests of OwnedParameters.
#pragma once

#include <weft/dist_optim/local/owned_parameters.h>

#include <string>

namespace weft::dist_optim {

// Ends a trainer's handle. This applies the round that waited for it.
inline void unregister_trainer(OwnedParameters& owned, const std::string& trainer, bool died) {
  owned.strike_off(trainer, died);
  owned.close_rounds();
}

}  // namespace weft::dist_optim
