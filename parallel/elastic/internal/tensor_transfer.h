// transfer_tensors(): sends tensors to ranks that have none of their values yet, while training goes on.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/elastic/plan/generation.h>

#include <functional>
#include <vector>

namespace weft::elastic::detail {

// Begins the transfers of this rank; the senders' tensors do not change until the returned function has run.
// On a receiver that function waits for the values, and writes them into the tensors. By way of the host's
// memory.
std::function<void()> transfer_tensors(const collectives::Group& group,
                                       const std::vector<Transfer>& transfers,
                                       const std::vector<at::Tensor>& tensors);

}  // namespace weft::elastic::detail
