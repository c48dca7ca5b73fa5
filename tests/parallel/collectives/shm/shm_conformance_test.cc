#include "tests/parallel/collectives/conformance.h"

namespace weft::collectives::testing {

INSTANTIATE_TEST_SUITE_P(SharedMemory, Conformance,
                         ::testing::Values(on_hosts_as("memory", Backend::memory),
                                           on_hosts_as("placed", Backend::placed)),
                         name_of_backend);

}  // namespace weft::collectives::testing
