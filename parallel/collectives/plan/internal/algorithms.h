// The algorithms of collectives, as plans: pure functions of the rank and the sizes.
//
// P is the number of ranks, n the number of elements. The comment at each algorithm gives its cost: the
// number of messages and elements that one rank sends. If all ranks call a function with the same arguments
// except the rank, their plans fit together. Roots and ranks are within [0, P). Blocks follow each other
// without gaps, one for each rank, and may be empty.
//
// Sources: ring and halving/doubling: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
// Communication Operations in MPICH" (2005); P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms
// for Clusters of Workstations" (2009). Barrier: D. Hensgen, R. Finkel, U. Manber, "Two Algorithms for
// Barrier Synchronization" (1988).
#pragma once

#include <weft/parallel/collectives/plan/internal/plan.h>

#include <span>
#include <vector>

namespace weft::collectives {

// The rank that a plan is for.
struct Member {
  int rank = 0, ranks = 1;
  std::size_t chunk = 0;  // maximum elements of a message; 0: no limit
};

// Divides the elements into `parts` blocks of sizes as equal as possible, the longer blocks first.
WEFT_EXPORT std::vector<Range> even_blocks(std::size_t elements, int parts);
// Returns consecutive blocks of these sizes.
WEFT_EXPORT std::vector<Range> blocks_of(std::span<const std::size_t> sizes);

// All-reduce. Input, accumulator and output may be the same memory.
WEFT_EXPORT Plan ring_all_reduce(Member me, std::size_t n);      // 2(P−1) messages, 2n(P−1)/P elements
WEFT_EXPORT Plan doubling_all_reduce(Member me, std::size_t n);  // log2 P messages of n
// 2 log2 P messages, 2n(P−1)/P elements. If P is not a power of two, doubling_all_reduce() and
// halving_all_reduce() combine the first ranks in pairs, so that a power of two remains. One rank of each
// pair sends n elements to the other rank and waits for the result; the other rank sends n additional
// elements.
WEFT_EXPORT Plan halving_all_reduce(Member me, std::size_t n);

WEFT_EXPORT Plan tree_reduce(Member me, int root, std::size_t n);      // 1 message of n, log2 P rounds
WEFT_EXPORT Plan chain_reduce(Member me, int root, std::size_t n);     // n in chunks, a chain of P−1 hops
WEFT_EXPORT Plan tree_broadcast(Member me, int root, std::size_t n);   // at most log2 P messages of n
WEFT_EXPORT Plan chain_broadcast(Member me, int root, std::size_t n);  // n in chunks, P−1 hops

// all_gather and gather: the input is this rank's block, the output has all blocks. reduce_scatter and
// scatter: the input has all blocks, the output is this rank's block.
WEFT_EXPORT Plan ring_all_gather(Member me, std::span<const Range> blocks);  // P−1 messages, n − own elements
WEFT_EXPORT Plan doubling_all_gather(Member me, std::span<const Range> blocks);  // log2 P; P a power of two
WEFT_EXPORT Plan ring_reduce_scatter(Member me, std::span<const Range> blocks);  // P−1 messages, n − own
WEFT_EXPORT Plan halving_reduce_scatter(Member me, std::span<const Range> blocks);   // log2 P; a power of two
WEFT_EXPORT Plan direct_gather(Member me, int root, std::span<const Range> blocks);  // 1 message to the root
WEFT_EXPORT Plan direct_scatter(Member me, int root, std::span<const Range> blocks);  // P−1 from the root

// to[i], from[i]: the range that this rank sends to rank i, and the range that it receives from rank i. P−1
// messages, in P−1 rounds of pairs. Empty messages are also sent, because a sender does not know whether the
// receiver expects an empty message.
WEFT_EXPORT Plan pairwise_all_to_all(Member me, std::span<const Range> to, std::span<const Range> from);

WEFT_EXPORT Plan dissemination_barrier(Member me);  // ⌈log2 P⌉ messages without elements

// Returns false for 0 and negative numbers.
WEFT_EXPORT bool is_power_of_two(int number);

}  // namespace weft::collectives
