// States are found by a breadth-first search: from each state, each atom whose sources are in the state
// leads to another state. The number of states limits which graphs can be partitioned, so it is bounded.
#include <weft/parallel/partition/internal/state_space.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <unordered_set>

namespace weft::partition {
namespace {

using Bits = std::vector<std::uint64_t>;

std::size_t words_for(std::size_t bits) { return (bits + 63) / 64; }
void set_bit(Bits& bits, std::size_t i) { bits[i / 64] |= std::uint64_t{1} << (i % 64); }
bool bit_of(const std::uint64_t* bits, std::size_t i) { return (bits[i / 64] >> (i % 64) & 1) != 0; }
std::size_t bits_in(const Bits& bits) {
  return std::accumulate(bits.begin(), bits.end(), std::size_t{0}, [](std::size_t sum, std::uint64_t word) {
    return sum + static_cast<std::size_t>(std::popcount(word));
  });
}

struct BitsHash {
  std::size_t operator()(const Bits& bits) const {
    std::uint64_t hash = 0x9e3779b97f4a7c15;
    for (const std::uint64_t word : bits) hash = (hash ^ word) * 0xff51afd7ed558ccd + (hash >> 29);
    return hash ^ hash >> 32;
  }
};

// Returns for each layer whether another layer with an atom is parallel to it: no path connects the two.
std::vector<bool> parallel_layers(const std::vector<std::size_t>& order, const std::vector<Edge>& edges,
                                  std::size_t layers, std::size_t counted) {
  const auto related = [&](bool forward) {  // by layer: how many layers reach it, or it reaches
    std::vector<Bits> reached(layers, Bits(words_for(layers)));
    std::vector<std::vector<std::size_t>> next(layers);
    for (const Edge& edge : edges)
      if (forward)
        next[edge.from].push_back(edge.to);
      else
        next[edge.to].push_back(edge.from);
    std::vector<std::size_t> counts(layers);
    const auto visit = [&](std::size_t layer) {
      counts[layer] = bits_in(reached[layer]);
      for (const std::size_t other : next[layer]) {
        for (std::size_t word = 0; word < reached[layer].size(); ++word)
          reached[other][word] |= reached[layer][word];
        set_bit(reached[other], layer);
      }
    };
    if (forward)
      std::for_each(order.begin(), order.end(), visit);
    else
      std::for_each(order.rbegin(), order.rend(), visit);
    return counts;
  };
  const auto before = related(true), after = related(false);
  std::vector<bool> parallel(layers);
  for (std::size_t i = 0; i < layers; ++i) parallel[i] = before[i] + after[i] + 1 < counted;
  return parallel;
}

}  // namespace

StateSpace::StateSpace(const Profile& profile, std::optional<Cuts> cuts, std::size_t max_states)
    : order_(topological_order(profile)) {
  find_edges(profile);
  std::optional<std::vector<Set>> found;
  for (const Cuts each : {Cuts::all, Cuts::whole_branches, Cuts::in_order}) {
    if (found || each != cuts.value_or(each)) continue;
    cuts_ = each;
    find_atoms();
    found = each == Cuts::in_order ? prefixes() : find_states(max_states);
  }
  if (!found)
    throw rpc::Error(rpc::ErrorKind::resource_exhausted,
                     "partition: the graph can be cut at more than " + std::to_string(max_states) +
                         " places (antichains), expected no more: keep branches whole, cut the topological "
                         "order, or allow more cuts");
  find_shared();
  std::vector<Totals> totals;
  std::vector<std::size_t> sizes, places(found->size());
  for (const Set& set : *found) {
    totals.push_back(totals_of(profile, set));
    sizes.push_back(bits_in(set));
  }
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
    if (totals[a].seconds != totals[b].seconds) return totals[a].seconds < totals[b].seconds;
    return sizes[a] < sizes[b];
  });
  for (const std::size_t place : places) {
    totals_.push_back(totals[place]);
    sets_.insert(sets_.end(), (*found)[place].begin(), (*found)[place].end());
  }
}

void StateSpace::find_edges(const Profile& profile) {
  std::vector<bool> is_read(profile.layers.size());
  left_out_.resize(profile.layers.size());
  for (const Edge& edge : profile.edges) is_read[edge.from] = true;
  for (std::size_t i = 0; i < left_out_.size(); ++i)
    left_out_[i] =
        is_input(profile, i) || (!is_read[i] && profile.layers[i].description.starts_with("__getitem__"));
  if (std::find(left_out_.begin(), left_out_.end(), false) == left_out_.end())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "partition: the profile has only inputs, expected at least one other layer");
  for (const Edge& edge : profile.edges)
    if (!left_out_[edge.from] && !left_out_[edge.to]) edges_.push_back(edge);
}

void StateSpace::find_atoms() {
  const std::size_t layers = left_out_.size();
  std::vector<std::size_t> readers(layers), sources(layers), source(layers);
  for (const Edge& edge : edges_) {
    ++readers[edge.from];
    ++sources[edge.to];
    source[edge.to] = edge.from;
  }
  std::vector<bool> parallel(layers);
  if (cuts_ == Cuts::whole_branches) {
    const auto counted = static_cast<std::size_t>(std::count(left_out_.begin(), left_out_.end(), false));
    parallel = parallel_layers(order_, edges_, layers, counted);
  }
  atoms_.assign(layers, no_atom);
  atom_count_ = 0;
  for (const std::size_t i : order_) {
    if (left_out_[i]) continue;
    const bool merge = parallel[i] && sources[i] == 1 && readers[source[i]] == 1 && parallel[source[i]];
    atoms_[i] = merge ? atoms_[source[i]] : atom_count_++;
  }
  words_ = words_for(atom_count_);
}

// Atoms are numbered in topological order.
std::vector<StateSpace::Set> StateSpace::prefixes() const {
  std::vector<Set> states{Set(words_)};
  for (std::size_t atom = 0; atom < atom_count_; ++atom) {
    states.push_back(states.back());
    set_bit(states.back(), atom);
  }
  return states;
}

void StateSpace::find_shared() {
  const std::size_t layers = left_out_.size();
  std::vector<std::vector<std::size_t>> readers(layers);
  for (const Edge& edge : edges_) readers[edge.from].push_back(edge.to);
  std::vector<Bits> before(layers, Bits(words_for(layers)));
  shared_.assign(layers, Bits(words_for(layers)));
  for (const std::size_t layer : order_) {
    for (std::size_t other = 0; other < layers; ++other) {
      if (!bit_of(before[layer].data(), other)) continue;
      const auto elsewhere = [&](std::size_t reader) {
        return reader != layer && !bit_of(before[layer].data(), reader);
      };
      if (std::any_of(readers[other].begin(), readers[other].end(), elsewhere))
        set_bit(shared_[layer], other);
    }
    for (const std::size_t reader : readers[layer]) {
      for (std::size_t word = 0; word < before[layer].size(); ++word)
        before[reader][word] |= before[layer][word];
      set_bit(before[reader], layer);
    }
  }
}

std::optional<std::vector<StateSpace::Set>> StateSpace::find_states(std::size_t max_states) const {
  std::vector<Set> sources(atom_count_, Set(words_));
  for (const Edge& edge : edges_)
    if (atoms_[edge.from] != atoms_[edge.to]) set_bit(sources[atoms_[edge.to]], atoms_[edge.from]);
  std::vector<Set> states{Set(words_)};
  std::unordered_set<Set, BitsHash> seen{states.front()};
  for (std::size_t state = 0; state < states.size(); ++state) {
    for (std::size_t atom = 0; atom < atom_count_; ++atom) {
      const Set& from = states[state];
      if (bit_of(from.data(), atom)) continue;
      bool ready = true;
      for (std::size_t word = 0; word < words_ && ready; ++word)
        ready = (sources[atom][word] & ~from[word]) == 0;
      if (!ready) continue;
      Set next = from;
      set_bit(next, atom);
      if (!seen.insert(next).second) continue;
      if (states.size() >= max_states) return std::nullopt;
      states.push_back(std::move(next));
    }
  }
  return states;
}

bool StateSpace::has(const std::uint64_t* set, std::size_t layer) const {
  return atoms_[layer] != no_atom && bit_of(set, atoms_[layer]);
}

// The order of layers in the sums is the same for all states, so rounding cannot make the sum of a larger
// set smaller.
StateSpace::Totals StateSpace::totals_of(const Profile& profile, const Set& set) const {
  Totals totals;
  for (const std::size_t i : order_) {
    if (!has(set.data(), i)) continue;
    totals.seconds += (profile.layers[i].forward_ms + profile.layers[i].backward_ms) / 1000;
    totals.activation_bytes += profile.layers[i].activation_bytes;
    totals.parameter_bytes += profile.layers[i].parameter_bytes;
  }
  const std::size_t layers = profile.layers.size();
  std::vector<bool> crosses(layers), is_read(layers);  // by layers outside of the state; by layers of it
  for (const Edge& edge : edges_)
    if (has(set.data(), edge.from)) (has(set.data(), edge.to) ? is_read : crosses)[edge.from] = true;
  Bits counted(words_for(layers));
  for (std::size_t i = 0; i < layers; ++i) {
    if (!has(set.data(), i) || is_read[i]) continue;  // i is maximal
    set_bit(counted, i);
    for (std::size_t word = 0; word < counted.size(); ++word) counted[word] |= shared_[i][word];
  }
  for (std::size_t i = 0; i < layers; ++i) {
    if (crosses[i]) totals.crossing_bytes += profile.layers[i].activation_bytes;
    if (bit_of(counted.data(), i)) totals.antichain_bytes += profile.layers[i].activation_bytes;
  }
  return totals;
}

bool StateSpace::contains(std::size_t outer, std::size_t inner) const {
  const std::uint64_t* large = sets_.data() + outer * words_;
  const std::uint64_t* small = sets_.data() + inner * words_;
  for (std::size_t word = 0; word < words_; ++word)
    if ((small[word] & ~large[word]) != 0) return false;
  return true;
}

std::vector<std::size_t> StateSpace::layers_between(std::size_t inner, std::size_t outer) const {
  std::vector<std::size_t> layers;
  for (const std::size_t i : order_)
    if (has(sets_.data() + outer * words_, i) && !has(sets_.data() + inner * words_, i)) layers.push_back(i);
  return layers;
}

}  // namespace weft::partition
