// Jobs whose world is not fixed, in one process: the suite over each kind of store that needs no process.
#include "tests/support/open_world_suite.h"

namespace weft::test {

INSTANTIATE_TEST_SUITE_P(Stores, OpenWorld,
                         testing::Values(job_kind<TcpJobStore>("tcp"),
                                         job_kind<InProcessJobStore>("in_process"),
                                         job_kind<FileJobStore>("file")),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace weft::test
