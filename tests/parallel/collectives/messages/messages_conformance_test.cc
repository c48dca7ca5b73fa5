#include "tests/parallel/collectives/conformance.h"

namespace weft::collectives::testing {

INSTANTIATE_TEST_SUITE_P(Messages, Conformance, ::testing::Values(on_hosts_as("messages", Backend::messages)),
                         name_of_backend);

}  // namespace weft::collectives::testing
