// --mode autograd: the server owns the convolutions, each trainer its head, and no trainer ever holds a
// parameter of the server's. The forward runs through a remote reference, the backward on both workers, and
// each optimizer's step beside the parameters that it changes.
#pragma once

#include <weft/rpc/membership/job.h>

#include "fashion_mnist/dataset.h"
#include "parameter_server/report.h"
#include "parameter_server/settings.h"

weft::rpc::Task<void> run_autograd(weft::rpc::Job& job, const Settings& settings, Batches& batches,
                                   const Dataset& test, Report& report);
