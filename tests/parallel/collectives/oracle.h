// Steps of operations against a serial oracle, which computes each result from the inputs of all ranks,
// element by element; sequences of steps, and threads that run them.
#pragma once

#include <algorithm>
#include <deque>
#include <random>
#include <thread>

#include "tests/parallel/collectives/operations.h"

namespace weft::collectives::testing {
namespace oracle {

// One operation of a sequence; the same on all ranks.
struct Step {
  std::size_t operation = 0;
  std::int64_t n = 1;  // elements of a whole tensor, about
  int seed = 0;
  std::size_t group = 0;
  bool placed = false;
  bool inlined = false;
  std::size_t in_flight = 0;  // the number of operations that a rank may leave unfinished
  int late = -1;              // this rank starts the step later than the others
  std::chrono::microseconds delay{0};
  std::function<at::Tensor(int, const at::Tensor&)> place = nullptr;  // onto a rank's device; null: none

  int root(const Group& group) const { return seed % group.size(); }
  std::int64_t part(const Group& group) const {
    return n == 0 ? 0 : std::max<std::int64_t>(1, n / group.size());
  }
  // Elements for a rank where the ranks' sizes differ; also none.
  std::int64_t part_of(const Group& group, int rank) const {
    return part(group) * ((rank + seed) % 3) / 2 + (seed % 2) * rank;
  }
  std::int64_t between(const Group& group, int from, int to) const {
    return part(group) * ((from + 2 * to + seed) % 3) / 2 + (seed % 2) * (from + to);
  }
};

inline at::Tensor data(const Step& step, int rank, std::int64_t n) {
  return at::arange(n, at::kInt).mul_(7).add_(rank * 13 + step.seed % 1'000).remainder_(61).to(at::kFloat);
}
inline at::Tensor sum(const Step& step, int ranks, std::int64_t n) {
  at::Tensor all = data(step, 0, n);
  for (int rank = 1; rank < ranks; ++rank) all += data(step, rank, n);
  return all;
}
inline at::Tensor in(const Step& step, const Group& group, const at::Tensor& values) {
  if (step.place) return step.place(group.rank(), values);
  return step.placed ? group.empty(values.sizes()).copy_(values) : values;
}
inline at::Tensor out(const Step& step, const Group& group, std::int64_t n) {
  if (step.place) return step.place(group.rank(), at::zeros({n}));
  return step.placed ? group.empty({n}).zero_() : at::zeros({n});
}
inline Begun equals(rpc::Future<void> done, Tensors outputs, Tensors expected) {
  return {std::move(done), [outputs = std::move(outputs), expected = std::move(expected)] {
            for (std::size_t i = 0; i < outputs.size(); ++i)
              if (!at::equal(outputs[i].cpu(), expected[i])) return false;
            return true;
          }};
}

struct OracleOperation {
  const char* name;
  Begun (*begin)(const Group&, const Step&);
};

inline constexpr OracleOperation oracle_operations[] = {
    {"all_reduce",
     [](const Group& group, const Step& step) {
       const at::Tensor t = in(step, group, data(step, group.rank(), step.n));
       return equals(group.all_reduce(t), {t}, {sum(step, group.size(), step.n)});
     }},
    {"reduce",
     [](const Group& group, const Step& step) {
       const bool is_root = group.rank() == step.root(group);
       const at::Tensor own = data(step, group.rank(), step.n), t = in(step, group, own.clone());
       return equals(group.reduce(t, step.root(group)), {t},
                     {is_root ? sum(step, group.size(), step.n) : own});
     }},
    {"broadcast",
     [](const Group& group, const Step& step) {
       const at::Tensor t = in(step, group, data(step, group.rank(), step.n));
       return equals(group.broadcast(t, step.root(group)), {t}, {data(step, step.root(group), step.n)});
     }},
    {"all_gather",
     [](const Group& group, const Step& step) {
       const std::int64_t part = step.part(group);
       Tensors all;
       for (int rank = 0; rank < group.size(); ++rank) all.push_back(data(step, rank, part));
       const at::Tensor output = out(step, group, part * group.size());
       return equals(group.all_gather(output, in(step, group, all[group.rank()])), {output}, {at::cat(all)});
     }},
    {"all_gather_v",
     [](const Group& group, const Step& step) {
       Tensors all, outputs;
       for (int rank = 0; rank < group.size(); ++rank) {
         all.push_back(data(step, rank, step.part_of(group, rank)));
         outputs.push_back(out(step, group, step.part_of(group, rank)));
       }
       auto done = group.all_gather_v(outputs, in(step, group, all[group.rank()]));
       return equals(std::move(done), outputs, all);
     }},
    {"reduce_scatter",
     [](const Group& group, const Step& step) {
       const std::int64_t part = step.part(group), n = part * group.size();
       const at::Tensor output = out(step, group, part);
       return equals(group.reduce_scatter(output, in(step, group, data(step, group.rank(), n))), {output},
                     {sum(step, group.size(), n).narrow(0, group.rank() * part, part)});
     }},
    {"reduce_scatter_v",
     [](const Group& group, const Step& step) {
       Tensors inputs;
       at::Tensor expected;
       for (int part = 0; part < group.size(); ++part) {
         Step one = step;
         one.seed += part;
         const std::int64_t n = step.part_of(group, part);
         inputs.push_back(in(step, group, data(one, group.rank(), n)));
         if (part == group.rank()) expected = sum(one, group.size(), n);
       }
       const at::Tensor output = out(step, group, step.part_of(group, group.rank()));
       return equals(group.reduce_scatter_v(output, inputs), {output}, {expected});
     }},
    {"all_to_all",
     [](const Group& group, const Step& step) {
       const std::int64_t part = step.part(group), n = part * group.size();
       Tensors expected;
       for (int rank = 0; rank < group.size(); ++rank)
         expected.push_back(data(step, rank, n).narrow(0, group.rank() * part, part));
       const at::Tensor output = out(step, group, n);
       return equals(group.all_to_all(output, in(step, group, data(step, group.rank(), n))), {output},
                     {at::cat(expected)});
     }},
    {"all_to_all_v",
     [](const Group& group, const Step& step) {
       const auto message = [&](int from, int to) {
         return data(step, from * group.size() + to, step.between(group, from, to));
       };
       Tensors inputs, outputs, expected;
       for (int other = 0; other < group.size(); ++other) {
         inputs.push_back(in(step, group, message(group.rank(), other)));
         expected.push_back(message(other, group.rank()));
         outputs.push_back(out(step, group, expected.back().numel()));
       }
       auto done = group.all_to_all_v(outputs, inputs);
       return equals(std::move(done), outputs, expected);
     }},
    {"gather",
     [](const Group& group, const Step& step) {
       const std::int64_t part = step.part(group);
       Tensors outputs, expected;
       if (group.rank() == step.root(group))
         for (int rank = 0; rank < group.size(); ++rank) {
           outputs.push_back(out(step, group, part));
           expected.push_back(data(step, rank, part));
         }
       auto done = group.gather(outputs, in(step, group, data(step, group.rank(), part)), step.root(group));
       return equals(std::move(done), outputs, expected);
     }},
    {"scatter",
     [](const Group& group, const Step& step) {
       const std::int64_t part = step.part(group);
       Tensors inputs;
       if (group.rank() == step.root(group))
         for (int rank = 0; rank < group.size(); ++rank)
           inputs.push_back(in(step, group, data(step, rank, part)));
       const at::Tensor output = out(step, group, part);
       return equals(group.scatter(output, inputs, step.root(group)), {output},
                     {data(step, group.rank(), part)});
     }},
    {"barrier", [](const Group& group, const Step&) { return equals(group.barrier(), {}, {}); }},
    {"messages",
     [](const Group& group, const Step& step) {
       const std::int64_t part = step.part(group);
       const at::Tensor output = out(step, group, part),
                        input = in(step, group, data(step, group.rank(), part));
       const Tensors expected{data(step, left_of(group), part)};
       // on devices one launch, because a send in a separate launch would wait for its receive
       if (step.place)
         return equals(group.batch({{PointToPoint::Kind::send, input, right_of(group)},
                                    {PointToPoint::Kind::recv, output, left_of(group)}}),
                       {output}, expected);
       return both(group.send(input, right_of(group)), group.recv(output, left_of(group)),
                   equals({}, {output}, expected).right);
     }},
};
inline constexpr std::size_t oracles = std::size(oracle_operations);

// Further operations, which check their own results: several tensors, messages, objects.
inline const std::vector<GroupOperation>& further_operations() {
  static const std::vector<GroupOperation> further = [] {
    std::vector<GroupOperation> all;
    for (const GroupOperation& operation : group_operations) {
      const std::string_view name = operation.name;
      const bool known = std::any_of(std::begin(oracle_operations), std::end(oracle_operations),
                                     [&](const OracleOperation& oracle) { return oracle.name == name; });
      if (!known && name != "send and recv" && name != "split") all.push_back(operation);
    }
    return all;
  }();
  return further;
}

inline std::string name_of(const Step& step) {
  return (step.operation < oracles ? oracle_operations[step.operation].name
                                   : further_operations()[step.operation - oracles].name) +
         std::string(" of ") + std::to_string(step.n);
}

inline Begun begin(const Step& step, const Group& group) {
  if (step.operation < oracles) return oracle_operations[step.operation].begin(group, step);
  return further_operations()[step.operation - oracles].begin(
      group, {.n = step.part(group), .number = step.seed % 1'000, .placed = step.placed});
}

// A thread for each rank starts all steps in order. `groups`: by number, then by rank.
inline void run_steps(const std::vector<std::vector<Group>>& groups, const std::vector<Step>& steps) {
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < groups.front().size(); ++rank)
    ranks.emplace_back([&, rank] {
      std::deque<std::pair<std::size_t, Begun>> running;
      const auto finish = [&] {
        auto [index, begun] = std::move(running.front());
        running.pop_front();
        const auto error = error_of([&, &done = begun.done] { got(std::move(done)); });
        EXPECT_TRUE(!error && begun.right())
            << "rank " << rank << ", step " << index << ": " << name_of(steps[index])
            << (index + 1 < steps.size() ? ", before " + name_of(steps[index + 1]) : "")
            << (error ? error->what() : "");
      };
      for (std::size_t index = 0; index < steps.size(); ++index) {
        const Step& step = steps[index];
        if (step.late == static_cast<int>(rank)) {
          const auto until = std::chrono::steady_clock::now() + step.delay;
          while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
        }
        const Group& group = groups[step.group][rank];
        running.emplace_back(index, begin(step, step.inlined ? group.inlined() : group));
        while (running.size() > step.in_flight) finish();
      }
      while (!running.empty()) finish();
    });
  for (std::thread& rank : ranks) rank.join();
}

inline Step random_step(std::mt19937_64& random, int ranks, std::size_t operations) {
  const auto draw = [&](std::uint64_t below) { return static_cast<int>(random() % below); };
  Step step;
  step.operation = static_cast<std::size_t>(random() % operations);
  step.n = 1 + static_cast<std::int64_t>(random() % (std::uint64_t{1} << draw(20)));  // up to 2 MiB
  step.seed = draw(100'000);
  step.group = static_cast<std::size_t>(draw(2));
  step.placed = draw(4) == 0;
  step.in_flight = static_cast<std::size_t>(draw(2) == 0 ? 0 : draw(4));
  step.inlined = draw(2) == 0;
  step.late = draw(4) == 0 ? draw(static_cast<std::uint64_t>(ranks)) : -1;
  step.delay = std::chrono::microseconds(draw(300));
  return step;
}

// Operations, each small or large, such that every one follows every one, large after small and small after
// large: an Eulerian circuit of the graph whose nodes are operations of either size, and whose edges lead to
// all operations of the other size (Hierholzer's algorithm).
struct Sized {
  std::size_t operation;
  bool large;
};
inline std::vector<Sized> every_ordered_pair(std::size_t operations, std::mt19937_64& random) {
  std::vector<std::vector<std::size_t>> unused(2 * operations);  // by node: operations that may follow
  for (auto& next : unused) {
    for (std::size_t operation = 0; operation < operations; ++operation) next.push_back(operation);
    std::shuffle(next.begin(), next.end(), random);
  }
  std::vector<Sized> path{{0, false}}, circuit;
  while (!path.empty()) {
    const Sized last = path.back();
    auto& next = unused[2 * last.operation + (last.large ? 1 : 0)];
    if (next.empty()) {
      circuit.push_back(last);
      path.pop_back();
    } else {
      path.push_back({next.back(), !last.large});
      next.pop_back();
    }
  }
  std::reverse(circuit.begin(), circuit.end());
  return circuit;
}

// One circuit, which two groups run alternately, two steps at a time. Group 1 is one step behind, so that
// each pair is back to back in one group and has two steps of the other group in between in the other.
// `large`: elements of a large operation, at least.
inline std::vector<Step> steps_of_every_pair(std::mt19937_64& random, int ranks, std::size_t operations,
                                             std::int64_t large) {
  const std::vector<Sized> circuit = every_ordered_pair(operations, random);
  std::vector<Step> steps;
  const auto add = [&](std::size_t group, std::size_t at) {
    if (at >= circuit.size()) return;
    Step& step = steps.emplace_back(random_step(random, ranks, operations));
    step.operation = circuit[at].operation;
    step.group = group;
    step.n = circuit[at].large
                 ? large + static_cast<std::int64_t>(random() % (3 * static_cast<std::uint64_t>(large)))
                 : 1 + static_cast<std::int64_t>(random() % 300);
  };
  add(1, 0);
  for (std::size_t at = 0; at < circuit.size(); at += 2) {
    add(0, at), add(0, at + 1);
    add(1, at + 1), add(1, at + 2);
  }
  return steps;
}

}  // namespace oracle
}  // namespace weft::collectives::testing
