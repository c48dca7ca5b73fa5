// Comparisons of data that the ranks of a group have exchanged: each rank finds the same difference itself.
// And errors of one rank that all ranks throw. Plain functions.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/rpc/call/invoke.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace weft::training {

// "weight Float[3, 2] on cpu". The ranks' devices may have different numbers.
inline std::string described(const std::string& name, const at::Tensor& tensor) {
  std::ostringstream text;
  text << name << ' ' << tensor.scalar_type() << tensor.sizes() << " on " << tensor.device().type();
  return text.str();
}

// "rank 0 has A, rank 2 has B", for the first rank whose list differs from that of rank 0; nullopt: all lists
// are equal. lists: by rank. none: the text for the end of a list.
inline std::optional<std::string> difference_of(const std::vector<std::vector<std::string>>& lists,
                                                const std::string& none) {
  const std::vector<std::string>& first = lists.front();
  for (std::size_t rank = 1; rank < lists.size(); ++rank) {
    const std::vector<std::string>& other = lists[rank];
    if (other == first) continue;
    const auto [a, b] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
    return "rank 0 has " + (a == first.end() ? none : *a) + ", rank " + std::to_string(rank) + " has " +
           (b == other.end() ? none : *b);
  }
  return std::nullopt;
}

// Throws an error that each rank has detected itself, from equal data. The exception may end the group. So
// each rank first waits until all ranks have the data, and throw this error and not that of the abort.
[[noreturn]] inline void throw_on_all_ranks(const collectives::Group& group, const rpc::Error& error) {
  (void)rpc::capture([&] { group.barrier().get(); });
  throw error;
}

// An error as a value; kind 0: none.
struct RankFailure {
  std::uint16_t kind = 0;
  std::string text = {};

  void raise() const {
    if (kind != 0) throw rpc::Error(static_cast<rpc::ErrorKind>(kind), text);
  }
  // That of f(); its text begins with `where`.
  template <class F>
  static RankFailure of(const std::string& where, F f) {
    try {
      f();
      return {};
    } catch (const rpc::Error& error) {
      return {static_cast<std::uint16_t>(error.kind()), where + error.what()};
    } catch (const std::exception& error) {
      return {static_cast<std::uint16_t>(rpc::ErrorKind::internal), where + error.what()};
    }
  }
};
WEFT_CODEC(RankFailure, kind, text)

// Calls f() on each rank, and waits for all ranks. If it fails on a rank, all ranks throw: their own error,
// or that of the first rank that has one.
template <class F>
void run_on_all_ranks(const collectives::Group& group, F f) {
  const RankFailure own = RankFailure::of("", std::move(f));
  const auto all = group.all_gather_object(own).get();
  own.raise();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    RankFailure failure = all[rank];
    failure.text.insert(0, "rank " + std::to_string(rank) + ": ");
    failure.raise();
  }
}

}  // namespace weft::training
