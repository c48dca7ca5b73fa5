// An all-reduce written with send and recv: the algorithm `ring_all_reduce` of docs/internals/collectives.md.
//
// The tensor is split into P parts, where P is the number of ranks. First each part is sent around the ring,
// and each rank adds its own values: after P-1 steps each rank has the sum of one part. Then the sums are
// sent around the ring, in P-1 more steps. Each rank sends 2(P-1)/P of the tensor, and all links are busy all
// the time.
#pragma once

#include <ATen/ATen.h>
#include <weft/parallel/collectives/group.h>

#include <vector>

// tensor: contiguous, of one shape on all ranks. Afterwards it is the sum of all tensors.
inline void ring_all_reduce(const weft::collectives::Group& group, at::Tensor tensor) {
  const int rank = group.rank(), ranks = group.size();
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  std::vector<at::Tensor> parts = tensor.view({-1}).tensor_split(ranks);  // views of nearly equal sizes
  const auto part = [&](int number) { return parts[static_cast<std::size_t>((number + ranks) % ranks)]; };
  const auto pass_on = [&](at::Tensor outgoing, at::Tensor incoming) {
    auto sent = group.send(outgoing, next);  // in flight while this rank receives
    group.recv(incoming, before).get();
    sent.get();
  };

  for (int step = 0; step < ranks - 1; ++step) {
    at::Tensor mine = part(rank - step - 1), theirs = at::empty_like(mine);
    pass_on(part(rank - step), theirs);
    mine += theirs;
  }
  for (int step = 0; step < ranks - 1; ++step) pass_on(part(rank + 1 - step), part(rank - step));
}
