// StateSpace: the places at which a graph of layers can be cut in two, so that data crosses the cut in one
// direction.
//
// A state is the set of layers before a cut: it contains every layer that one of its layers reads. Its
// maximal members form an antichain, and PipeDream names states by these. The layers between two nested
// states can form a stage. A chain of n layers has n + 1 states; parallel branches multiply their numbers of
// states.
//
// State 0 is empty and the last state has all layers. States are sorted so that each state comes after all
// states that it contains. Two kinds of layers are in no state, as in PipeDream's optimizer: inputs
// (is_input()), and layers whose description begins with "__getitem__" and that no layer reads.
// Thread-safety: immutable.
#pragma once

#include <weft/parallel/partition/partition.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::partition {

class StateSpace {
 public:
  // If `cuts` is nullopt, the constructor uses the first of Cuts::all, Cuts::whole_branches and
  // Cuts::in_order that has at most max_states states. max_states does not limit Cuts::in_order, which has a
  // state for each layer. resource_exhausted: more than max_states states. invalid_argument:
  // topological_order() rejects the profile, or all layers are of the two kinds that are in no state.
  StateSpace(const Profile& profile, std::optional<Cuts> cuts, std::size_t max_states);

  std::size_t size() const { return totals_.size(); }
  Cuts cuts() const { return cuts_; }

  // Sums over the layers of a state. They never decrease from a state to a state that contains it.
  double seconds(std::size_t state) const { return totals_[state].seconds; }
  double activation_bytes(std::size_t state) const { return totals_[state].activation_bytes; }
  double parameter_bytes(std::size_t state) const { return totals_[state].parameter_bytes; }
  // The bytes of all outputs of layers in the state that layers outside of the state read.
  double crossing_bytes(std::size_t state) const { return totals_[state].crossing_bytes; }
  // The bytes that PipeDream's optimizer counts instead of crossing_bytes(). These are the outputs of the
  // maximal layers. For each maximal layer m, they are also the outputs of those layers before m that are
  // read by a layer which is neither m nor before m. In a chain both numbers are equal. In a graph with
  // branches, antichain_bytes() may include outputs that no layer outside of the state reads.
  double antichain_bytes(std::size_t state) const { return totals_[state].antichain_bytes; }

  bool contains(std::size_t outer, std::size_t inner) const;  // whether `outer` has all layers of `inner`
  // The layers of `outer` that are not in `inner`, in topological order.
  std::vector<std::size_t> layers_between(std::size_t inner, std::size_t outer) const;

 private:
  using Set = std::vector<std::uint64_t>;  // one bit for each atom
  struct Totals {
    double seconds = 0, activation_bytes = 0, parameter_bytes = 0, crossing_bytes = 0, antichain_bytes = 0;
  };
  static constexpr std::size_t no_atom = static_cast<std::size_t>(-1);

  void find_edges(const Profile& profile);
  void find_atoms();
  void find_shared();
  std::optional<std::vector<Set>> find_states(std::size_t max_states) const;  // nullopt: there are more
  std::vector<Set> prefixes() const;
  Totals totals_of(const Profile& profile, const Set& set) const;
  bool has(const std::uint64_t* set, std::size_t layer) const;

  Cuts cuts_ = Cuts::all;
  std::vector<std::size_t> order_;  // layers in topological order
  std::vector<bool> left_out_;      // by layer: in no state
  std::vector<std::size_t> atoms_;  // by layer: its atom, whose layers no cut separates; or no_atom
  std::vector<Edge> edges_;         // between layers that have atoms
  // By layer m: the layers before m that are read by a layer which is neither m nor before m.
  std::vector<Set> shared_;
  std::size_t atom_count_ = 0;
  std::size_t words_ = 0;            // of each set
  std::vector<std::uint64_t> sets_;  // of all states, one after the other
  std::vector<Totals> totals_;       // by state
};

}  // namespace weft::partition
