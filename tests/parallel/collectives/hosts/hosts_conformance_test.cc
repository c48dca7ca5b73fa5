#include "tests/parallel/collectives/conformance.h"

namespace weft::collectives::testing {

INSTANTIATE_TEST_SUITE_P(Hosts, Conformance,
                         ::testing::Values(on_hosts_as("hosts", Backend::hosts),
                                           on_hosts_as("uneven", Backend::uneven)),
                         name_of_backend);

}  // namespace weft::collectives::testing
