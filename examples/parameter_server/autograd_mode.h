// --mode autograd: the server owns the convolutions, and each trainer owns its head. No trainer ever holds a
// parameter of the server. The forward calls the server's module through a remote reference, the backward
// runs on both workers, and each parameter is stepped by its owner.
#pragma once

#include <weft/rpc/job/job.h>

#include "fashion_mnist/dataset.h"
#include "parameter_server/report.h"
#include "parameter_server/settings.h"

weft::rpc::Task<void> run_autograd(weft::rpc::Job& job, const Settings& settings, Batches& batches,
                                   const Dataset& test, Report& report);
