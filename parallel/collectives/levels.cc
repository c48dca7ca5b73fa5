#include <weft/parallel/collectives/levels.h>

#include <algorithm>
#include <map>

namespace weft::collectives {

std::optional<Hosts> Hosts::of(const std::vector<std::string>& host_of_rank, int rank) {
  Hosts hosts;
  std::map<std::string, std::size_t> known;
  for (std::size_t each = 0; each < host_of_rank.size(); ++each) {
    const auto [found, is_new] = known.emplace(host_of_rank[each], hosts.ranks.size());
    if (is_new) hosts.ranks.emplace_back();
    hosts.ranks[found->second].push_back(static_cast<int>(each));
  }
  const std::size_t size = hosts.ranks.front().size();
  const bool even = std::all_of(hosts.ranks.begin(), hosts.ranks.end(),
                                [&](const std::vector<int>& ranks) { return ranks.size() == size; });
  if (hosts.count() < 2 || size < 2 || !even) return std::nullopt;
  hosts.host = hosts.host_of(rank);
  hosts.index = hosts.index_of(rank);
  return hosts;
}

int Hosts::host_of(int rank) const {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const std::vector<int>& own) {
    return std::find(own.begin(), own.end(), rank) != own.end();
  });
  return static_cast<int>(found - ranks.begin());
}

int Hosts::index_of(int rank) const {
  const std::vector<int>& own = ranks[static_cast<std::size_t>(host_of(rank))];
  return static_cast<int>(std::find(own.begin(), own.end(), rank) - own.begin());
}

bool has_levels(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce ||
         operation == Operation::broadcast || operation == Operation::barrier;
}

Levels::Levels(const Collective& collective, const Hosts& hosts, SharedSpace& space) {
  for (Collective* level : {&first, &last}) {
    level->signature = collective.signature;
    level->site = collective.site;
    level->memory.item_size = collective.memory.item_size;
  }
  memory.item_size = collective.memory.item_size;
  switch (collective.layout.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
      reduce(collective, hosts, space);
      break;
    case Operation::broadcast:
      broadcast(collective, hosts);
      break;
    default:
      break;  // barriers, all three
  }
}

void Levels::reduce(const Collective& collective, const Hosts& hosts, SharedSpace& space) {
  const std::size_t n = collective.layout.elements;
  const auto blocks = even_blocks(n, space.ranks());
  const Range own = blocks[static_cast<std::size_t>(space.rank())];
  const int root = collective.layout.root;
  const std::size_t bytes = std::max<std::size_t>(1, own.size() * collective.memory.item_size);
  std::shared_ptr<std::byte> block = space.try_allocate(bytes);
  if (block == nullptr) block = {new std::byte[bytes], std::default_delete<std::byte[]>()};

  // An average is taken once, of all: here is but a sum of some.
  const bool averages = collective.signature.reduction == ReduceOp::Kind::avg;
  first.reduction = averages ? Reduction(ReduceOp::sum, collective.signature.dtype) : *collective.reduction;
  first.layout = {
      .operation = Operation::reduce_scatter, .root = -1, .elements = 0, .blocks = blocks, .from = {}};
  first.memory.input = collective.memory.input;
  first.memory.output = block.get();

  between = {.operation = collective.layout.operation,
             .root = root < 0 ? -1 : hosts.host_of(root),
             .elements = own.size(),
             .blocks = {},
             .from = {}};
  memory.input = memory.output = block.get();
  if (!collective.reduction->accumulates_wide()) memory.accumulator = block.get();
  memory.keeper = block;

  if (root >= 0 && hosts.host_of(root) != hosts.host) return;  // a barrier is left
  last.layout = {.operation = root < 0 ? Operation::all_gather_v : Operation::gather,
                 .root = root < 0 ? -1 : hosts.index_of(root),
                 .elements = 0,
                 .blocks = blocks,
                 .from = {}};
  last.memory.input = block.get();
  last.memory.output = collective.memory.output;
  last.memory.keeper = block;
}

void Levels::broadcast(const Collective& collective, const Hosts& hosts) {
  const int root = collective.layout.root;
  const std::size_t n = collective.layout.elements;
  if (hosts.index_of(root) == hosts.index) {
    between = {.operation = Operation::broadcast,
               .root = hosts.host_of(root),
               .elements = n,
               .blocks = {},
               .from = {}};
    memory.input = collective.memory.input;
    memory.output = collective.memory.output;
  }
  last.layout = {.operation = Operation::broadcast,
                 .root = hosts.index_of(root),
                 .elements = n,
                 .blocks = {},
                 .from = {}};
  // What has come from the root's host is what its column gives here.
  last.memory.input = collective.memory.input != nullptr ? collective.memory.input : collective.memory.output;
  last.memory.output = collective.memory.output;
}

}  // namespace weft::collectives
