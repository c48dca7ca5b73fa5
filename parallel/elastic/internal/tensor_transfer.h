// transfer_tensors(): sends tensors to new ranks while training continues.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/elastic/plan/generation.h>

#include <functional>
#include <vector>

namespace weft::elastic::detail {

// Starts the transfers of this rank, through host memory. The senders' tensors must not change until the
// returned function has run. On a receiver, that function waits for the values and writes them into the
// tensors.
std::function<void()> transfer_tensors(const collectives::Group& group,
                                       const std::vector<Transfer>& transfers,
                                       const std::vector<at::Tensor>& tensors);

}  // namespace weft::elastic::detail
