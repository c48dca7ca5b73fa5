// An all-reduce made by hand, of send and recv alone: what `ring_all_reduce` in docs/collectives.md is.
//
// The tensor is cut into as many parts as there are ranks. First each part goes around the ring once, and
// every rank that it comes to adds its own: after P-1 steps each rank has the sum of one part. Then the sums
// go around, P-1 steps more. Every rank sends 2(P-1)/P of the tensor, however many ranks there are, and all
// links are busy all the time.
#pragma once

#include <ATen/ATen.h>
#include <weft/parallel/collectives/group.h>

#include <vector>

// tensor: contiguous, of one shape on all ranks; afterwards the sum of all.
inline void ring_all_reduce(const weft::collectives::Group& group, at::Tensor tensor) {
  const int rank = group.rank(), ranks = group.size();
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  std::vector<at::Tensor> parts = tensor.view({-1}).tensor_split(ranks);  // views: some may be one longer
  const auto part = [&](int number) { return parts[static_cast<std::size_t>((number + ranks) % ranks)]; };
  const auto pass_on = [&](at::Tensor outgoing, at::Tensor incoming) {
    auto sent = group.send(outgoing, next);  // under way, while the other comes
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
