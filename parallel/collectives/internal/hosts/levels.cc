#include <weft/parallel/collectives/internal/hosts/levels.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace weft::collectives {

// --- Hosts ---

std::optional<Hosts> Hosts::of(const std::vector<std::string>& host_of_rank, int rank) {
  Hosts hosts;
  std::map<std::string, std::size_t> known;
  for (std::size_t each = 0; each < host_of_rank.size(); ++each) {
    const auto [found, is_new] = known.emplace(host_of_rank[each], hosts.ranks.size());
    if (is_new) hosts.ranks.emplace_back();
    hosts.ranks[found->second].push_back(static_cast<int>(each));
  }
  if (hosts.count() < 2 || hosts.ranks.size() == host_of_rank.size()) return std::nullopt;
  const auto smallest = std::min_element(hosts.ranks.begin(), hosts.ranks.end(),
                                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
  hosts.columns = static_cast<int>(smallest->size());
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

BlocksByColumn::BlocksByColumn(const Hosts& hosts, const std::vector<Range>& blocks) {
  std::size_t at = 0;
  for (int column = 0; column < hosts.columns; ++column) {
    const std::size_t begin = at;
    std::vector<Range>& of_hosts = sections.emplace_back();
    for (const std::vector<int>& ranks : hosts.ranks) {
      const std::size_t section = at - begin;
      for (auto index = static_cast<std::size_t>(column); index < ranks.size();
           index += static_cast<std::size_t>(hosts.columns)) {
        const Range block = blocks[static_cast<std::size_t>(ranks[index])];
        in_order = in_order && (block.empty() || block.begin == at);
        pieces.push_back({block, at});
        at += block.size();
      }
      of_hosts.push_back({section, at - begin});
    }
    columns.push_back({begin, at});
  }
}

// --- Levels ---

namespace {

std::shared_ptr<std::byte> allocate(SharedSpace& space, std::size_t bytes) {
  bytes = std::max<std::size_t>(1, bytes);
  std::shared_ptr<std::byte> memory = space.try_allocate(bytes);
  if (memory == nullptr) memory = {new std::byte[bytes], std::default_delete<std::byte[]>()};
  return memory;
}

// Adds empty blocks for the other ranks of a host.
std::vector<Range> fill_up(std::vector<Range> blocks, int ranks) {
  const std::size_t end = blocks.empty() ? 0 : blocks.back().end;
  blocks.resize(static_cast<std::size_t>(ranks), Range{end, end});
  return blocks;
}

// Sizes of the blocks of this host's ranks.
std::vector<std::size_t> sizes_here(const Hosts& hosts, const std::vector<Range>& blocks) {
  std::vector<std::size_t> sizes;
  for (const int rank : hosts.ranks[static_cast<std::size_t>(hosts.host)])
    sizes.push_back(blocks[static_cast<std::size_t>(rank)].size());
  return sizes;
}

// The blocks that a rank exchanges within its host; levels.h explains columns. own: this rank's block, for
// the rank of its column. carried: if this rank is in a column, the blocks of the ranks that this column
// carries.
struct Handing {
  Handing(const Hosts& hosts, const std::vector<Range>& blocks) {
    std::vector<std::size_t> own_sizes, carried_sizes;
    const std::vector<std::size_t> sizes = sizes_here(hosts, blocks);
    for (int other = 0; other < hosts.here(); ++other) {
      const bool mine = other == hosts.column_of(hosts.index), carry = hosts.column_of(other) == hosts.index;
      own_sizes.push_back(mine ? sizes[static_cast<std::size_t>(hosts.index)] : 0);
      carried_sizes.push_back(carry ? sizes[static_cast<std::size_t>(other)] : 0);
    }
    own = blocks_of(own_sizes);
    carried = blocks_of(carried_sizes);
  }
  std::vector<Range> own, carried;
};

}  // namespace

bool has_levels(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::broadcast:
    case Operation::all_gather:
    case Operation::all_gather_v:
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
    case Operation::barrier:
      return true;
    default:
      return false;
  }
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
      broadcast(collective, hosts, space);
      break;
    case Operation::all_gather:
    case Operation::all_gather_v:
      all_gather(collective, hosts, space);
      break;
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      reduce_scatter(collective, hosts, space);
      break;
    default:
      break;  // all three are barriers
  }
}

void Levels::refuse_last() {
  Collective refusal;
  refusal.site = last.site;
  refusal.signature = last.signature;
  refusal.signature.refused = true;
  last = std::move(refusal);
}

namespace {
// The reduction on a host: for an average a sum, because the average is computed once, over all ranks.
Reduction reduction_here(const Collective& collective) {
  return collective.signature.reduction == ReduceOp::Kind::avg
             ? Reduction(ReduceOp::sum, collective.reduction->type())
             : *collective.reduction;
}
}  // namespace

void Levels::reduce(const Collective& collective, const Hosts& hosts, SharedSpace& space) {
  const auto blocks = fill_up(even_blocks(collective.layout.elements, hosts.columns), hosts.here());
  const Range own = blocks[static_cast<std::size_t>(hosts.index)];
  const int root = collective.layout.root;
  const std::shared_ptr<std::byte> block = allocate(space, own.size() * collective.memory.item_size);

  first.reduction = reduction_here(collective);
  first.layout = {.operation = Operation::reduce_scatter, .blocks = blocks};
  first.memory.input = collective.memory.input;
  first.memory.output = block.get();

  between = {.operation = collective.layout.operation,
             .root = root < 0 ? -1 : hosts.host_of(root),
             .elements = own.size()};
  memory.input = memory.output = block.get();
  if (!collective.reduction->accumulates_wide()) memory.accumulator = block.get();
  memory.keeper = block;

  if (root >= 0 && hosts.host_of(root) != hosts.host) return;  // a barrier remains
  last.layout = {.operation = root < 0 ? Operation::all_gather_v : Operation::gather,
                 .root = root < 0 ? -1 : hosts.index_of(root),
                 .blocks = blocks};
  last.memory.input = block.get();
  last.memory.output = collective.memory.output;
  last.memory.keeper = block;
}

void Levels::broadcast(const Collective& collective, const Hosts& hosts, SharedSpace& space) {
  const int root = collective.layout.root, index = hosts.index_of(root);
  const std::size_t n = collective.layout.elements;
  const bool at_root = hosts.host_of(root) == hosts.host;
  const bool hands_on = index >= hosts.columns;  // the root is in no column: its host's first rank sends
  const int column = hands_on ? 0 : index;
  std::shared_ptr<std::byte> handed;
  if (hands_on && at_root) {
    first.layout = {
        .operation = Operation::scatter, .root = index, .blocks = fill_up({{0, n}}, hosts.here())};
    first.memory.input = collective.memory.input;
    if (hosts.index == column) handed = allocate(space, n * collective.memory.item_size);
    first.memory.output = handed.get();
  }
  if (hosts.index == column) {
    between = {.operation = Operation::broadcast, .root = hosts.host_of(root), .elements = n};
    memory.input = handed != nullptr ? handed.get() : collective.memory.input;
    memory.output = handed != nullptr ? handed.get() : collective.memory.output;
    memory.keeper = handed;
  }
  last.layout = {.operation = Operation::broadcast, .root = at_root ? index : column, .elements = n};
  // On the root's host, the root itself supplies the values; on other hosts, the rank in the root's column
  // does.
  last.memory.input = collective.memory.input != nullptr ? collective.memory.input : collective.memory.output;
  last.memory.output = collective.memory.output;
}

// First, the ranks in columns read the blocks of the ranks that they carry. Between hosts, each column
// gathers. Last, all ranks of the host read the data of each column, and reorder them by rank.
void Levels::all_gather(const Collective& collective, const Hosts& hosts, SharedSpace& space) {
  const std::vector<Range>& blocks = collective.layout.blocks;
  const std::size_t item = collective.memory.item_size;
  const BlocksByColumn by_column(hosts, blocks);
  const Handing handing(hosts, blocks);
  std::shared_ptr<std::byte> all;
  if (!by_column.in_order) all = allocate(space, by_column.columns.back().end * item);
  std::byte* const output = all != nullptr ? all.get() : collective.memory.output;

  memory.input = collective.memory.input;
  if (hosts.here() > hosts.columns) {
    first.layout = {.operation = Operation::all_to_all_v, .blocks = handing.own, .from = handing.carried};
    first.memory.input = collective.memory.input;
    if (hosts.in_column()) {
      const std::shared_ptr<std::byte> carried = allocate(space, handing.carried.back().end * item);
      first.memory.output = carried.get();
      memory.input = carried.get();
      memory.keeper = first.memory.keeper = carried;
    }
  }
  std::size_t begin = 0;
  if (hosts.in_column()) {
    const auto column = static_cast<std::size_t>(hosts.index);
    begin = by_column.columns[column].begin;
    between = {.operation = Operation::all_gather_v, .blocks = by_column.sections[column]};
    memory.output = output + begin * item;
  }
  last.layout = {.operation = Operation::all_gather_v, .blocks = fill_up(by_column.columns, hosts.here())};
  last.memory.input = output + begin * item;
  last.memory.output = output;
  last.memory.keeper = all;
  if (all != nullptr)
    last.after = [all, item, pieces = by_column.pieces, to = collective.memory.output] {
      for (const auto& [block, at] : pieces)
        if (!block.empty()) std::memcpy(to + block.begin * item, all.get() + at * item, block.size() * item);
    };
}

// The reverse of all_gather: each column reduces its blocks on the host, then between hosts, and distributes
// them.
void Levels::reduce_scatter(const Collective& collective, const Hosts& hosts, SharedSpace& space) {
  const std::vector<Range>& blocks = collective.layout.blocks;
  const std::size_t item = collective.memory.item_size;
  const BlocksByColumn by_column(hosts, blocks);
  const Handing handing(hosts, blocks);
  const bool hands_out = hosts.here() > hosts.columns;

  first.reduction = reduction_here(collective);
  first.layout = {.operation = Operation::reduce_scatter_v,
                  .blocks = fill_up(by_column.columns, hosts.here())};
  first.memory.input = collective.memory.input;
  if (!by_column.in_order) {
    const std::shared_ptr<std::byte> all = allocate(space, by_column.columns.back().end * item);
    first.before = [all, item, pieces = by_column.pieces, from = collective.memory.input] {
      for (const auto& [block, at] : pieces)
        if (!block.empty())
          std::memcpy(all.get() + at * item, from + block.begin * item, block.size() * item);
    };
    first.memory.input = all.get();
    first.memory.keeper = all;
  }
  if (hosts.in_column()) {
    const auto column = static_cast<std::size_t>(hosts.index);
    const std::shared_ptr<std::byte> partial = allocate(space, by_column.columns[column].size() * item);
    first.memory.output = partial.get();
    between = {.operation = Operation::reduce_scatter_v, .blocks = by_column.sections[column]};
    memory.input = partial.get();
    memory.output = collective.memory.output;
    memory.keeper = partial;
    if (hands_out) {
      const std::shared_ptr<std::byte> carried = allocate(space, handing.carried.back().end * item);
      memory.output = carried.get();
      last.memory.input = carried.get();
      last.memory.keeper = carried;
    }
  }
  if (!hands_out) return;  // a barrier remains
  last.layout = {.operation = Operation::all_to_all_v, .blocks = handing.carried, .from = handing.own};
  last.memory.output = collective.memory.output;
}

}  // namespace weft::collectives
