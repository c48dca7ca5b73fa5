// Every operation of a group, called on all ranks at the same time, and its expected result.
#pragma once

#include <weft/rpc/core/when_all.h>

#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {

// The parameters of a call, which are equal on all ranks.
struct Round {
  std::int64_t n = 10;    // elements of a part
  int number = 0;         // selects sizes, values and the root
  std::uint64_t tag = 0;  // of its messages
  bool placed = false;    // in the group's memory, where it has one

  int root(const Group& group) const { return number % group.size(); }
  float of(int rank) const { return static_cast<float>(rank + 1 + number % 50); }
  float from_to(int from, int to) const { return of(from) + static_cast<float>(100 * to); }
  float sum(const Group& group) const {
    float all = 0;
    for (int rank = 0; rank < group.size(); ++rank) all += of(rank);
    return all;
  }
  std::string text(int rank) const {
    return std::string(static_cast<std::size_t>(std::min<std::int64_t>(n, 5'000)),
                       static_cast<char>('a' + (rank + number) % 26));
  }
  at::Tensor filled(const Group& group, at::IntArrayRef shape, float value) const {
    return placed ? group.empty(shape).fill_(value) : at::full(shape, value);
  }
  at::Tensor own(const Group& group, at::IntArrayRef shape) const {
    return filled(group, shape, of(group.rank()));
  }
  at::Tensor zeros(const Group& group, at::IntArrayRef shape) const { return filled(group, shape, 0); }
  // rank i gets `more` × i additional elements
  Tensors for_all(const Group& group, std::int64_t more = 0) const {
    Tensors tensors;
    for (int to = 0; to < group.size(); ++to)
      tensors.push_back(filled(group, {n + more * to}, from_to(group.rank(), to)));
    return tensors;
  }
  Tensors zeros_of_all(const Group& group, std::int64_t more = 0) const {
    Tensors tensors;
    for (int rank = 0; rank < group.size(); ++rank) tensors.push_back(zeros(group, {n + more * rank}));
    return tensors;
  }
};

struct Begun {
  rpc::Future<void> done;
  std::function<bool()> right;  // checks the result after success
};

struct GroupOperation {
  const char* name;
  Begun (*begin)(const Group&, const Round&);
};

inline bool all_are(const at::Tensor& tensor, float value) { return tensor.eq(value).all().item<bool>(); }

// Returns whether each part i, that of rank i, has the value value(i).
template <class Parts, class F>
bool each_is(const Parts& parts, std::int64_t count, F value) {
  for (std::int64_t i = 0; i < count; ++i)
    if (!all_are(parts[i], value(static_cast<int>(i)))) return false;
  return true;
}

inline bool are_texts(const std::vector<std::string>& all, const Round& round, int ranks) {
  for (int rank = 0; rank < ranks; ++rank)
    if (all.at(rank) != round.text(rank)) return false;
  return std::ssize(all) == ranks;
}

template <class T, class F>
Begun brings(rpc::Future<T> future, F right) {
  const auto value = std::make_shared<std::optional<T>>();
  auto done = future.then(
      [value](rpc::Result<T>&& result) { return rpc::capture([&] { *value = std::move(result).get(); }); });
  return {std::move(done), [value, right] { return right(**value); }};
}

inline Begun both(rpc::Future<void> a, rpc::Future<void> b, std::function<bool()> right) {
  Futures two;
  two.push_back(std::move(a));
  two.push_back(std::move(b));
  return {rpc::when_all(std::move(two)), std::move(right)};
}

inline int right_of(const Group& group) { return (group.rank() + 1) % group.size(); }
inline int left_of(const Group& group) { return (group.rank() + group.size() - 1) % group.size(); }

inline constexpr GroupOperation group_operations[] = {
    {"all_reduce",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor t = round.own(group, {round.n});
       return {group.all_reduce(t), [t, sum = round.sum(group)] { return all_are(t, sum); }};
     }},
    {"all_reduce of several",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor a = round.own(group, {round.n}), b = round.own(group, {2, 3}).t();
       return {group.all_reduce(Tensors{a, b}),
               [a, b, sum = round.sum(group)] { return all_are(a, sum) && all_are(b, sum); }};
     }},
    {"reduce",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor t = round.own(group, {round.n});
       const int root = round.root(group);
       const float is = group.rank() == root ? round.sum(group) : round.of(group.rank());
       return {group.reduce(t, root), [t, is] { return all_are(t, is); }};
     }},
    {"broadcast",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor t = round.own(group, {round.n});
       const int root = round.root(group);
       return {group.broadcast(t, root), [t, is = round.of(root)] { return all_are(t, is); }};
     }},
    {"broadcast of several",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor a = round.own(group, {round.n}), b = round.own(group, {2, 3}).t();
       const int root = round.root(group);
       return {group.broadcast(Tensors{a, b}, root),
               [a, b, is = round.of(root)] { return all_are(a, is) && all_are(b, is); }};
     }},
    {"all_gather",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor all = round.zeros(group, {group.size(), round.n});
       return {group.all_gather(all, round.own(group, {round.n})),
               [all, round] { return each_is(all, all.size(0), [&](int rank) { return round.of(rank); }); }};
     }},
    {"all_gather of several",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor a = round.zeros(group, {group.size(), round.n}),
                        b = round.zeros(group, {group.size(), 3});
       return {group.all_gather(Tensors{a, b}, Tensors{round.own(group, {round.n}), round.own(group, {3})}),
               [a, b, round] {
                 const auto of = [&](int rank) { return round.of(rank); };
                 return each_is(a, a.size(0), of) && each_is(b, b.size(0), of);
               }};
     }},
    {"all_gather_v",
     [](const Group& group, const Round& round) -> Begun {
       const Tensors all = round.zeros_of_all(group, 3);
       return {group.all_gather_v(all, round.own(group, all[group.rank()].sizes())), [all, round] {
                 return each_is(all, std::ssize(all), [&](int rank) { return round.of(rank); });
               }};
     }},
    {"reduce_scatter",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor t = round.zeros(group, {round.n});
       const float is = round.sum(group) + static_cast<float>(100 * group.rank() * group.size());
       return {group.reduce_scatter(t, at::stack(round.for_all(group))), [t, is] { return all_are(t, is); }};
     }},
    {"reduce_scatter of several",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor a = round.zeros(group, {round.n}), b = round.zeros(group, {3});
       const at::Tensor parts = round.own(group, {group.size(), 3}), whole = at::stack(round.for_all(group));
       const float sum = round.sum(group), is = sum + static_cast<float>(100 * group.rank() * group.size());
       return {group.reduce_scatter(Tensors{a, b}, Tensors{whole, parts}),
               [a, b, is, sum] { return all_are(a, is) && all_are(b, sum); }};
     }},
    {"reduce_scatter_v",
     [](const Group& group, const Round& round) -> Begun {
       const Tensors inputs = round.for_all(group, 3);
       const at::Tensor t = round.zeros(group, inputs[group.rank()].sizes());
       const float is = round.sum(group) + static_cast<float>(100 * group.rank() * group.size());
       return {group.reduce_scatter_v(t, inputs), [t, is] { return all_are(t, is); }};
     }},
    {"all_to_all",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor all = round.zeros(group, {group.size(), round.n});
       return {group.all_to_all(all, at::stack(round.for_all(group))), [all, round, to = group.rank()] {
                 return each_is(all, all.size(0), [&](int from) { return round.from_to(from, to); });
               }};
     }},
    {"all_to_all_v",
     [](const Group& group, const Round& round) -> Begun {
       Tensors all;  // as large as they are for this rank
       for (int from = 0; from < group.size(); ++from)
         all.push_back(round.zeros(group, {round.n + 3 * group.rank()}));
       return {group.all_to_all_v(all, round.for_all(group, 3)), [all, round, to = group.rank()] {
                 return each_is(all, std::ssize(all), [&](int from) { return round.from_to(from, to); });
               }};
     }},
    {"gather",
     [](const Group& group, const Round& round) -> Begun {
       const int root = round.root(group);
       const Tensors all = group.rank() == root ? round.zeros_of_all(group) : Tensors{};
       return {group.gather(all, round.own(group, {round.n}), root), [all, round] {
                 return each_is(all, std::ssize(all), [&](int rank) { return round.of(rank); });
               }};
     }},
    {"scatter",
     [](const Group& group, const Round& round) -> Begun {
       const int root = round.root(group);
       const at::Tensor t = round.zeros(group, {round.n});
       return {group.scatter(t, group.rank() == root ? round.for_all(group) : Tensors{}, root),
               [t, is = round.from_to(root, group.rank())] { return all_are(t, is); }};
     }},
    {"barrier",
     [](const Group& group, const Round&) -> Begun { return {group.barrier(), [] { return true; }}; }},
    {"send and recv",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor t = round.zeros(group, {round.n});
       return both(group.send(round.own(group, {round.n}), right_of(group), round.tag),
                   group.recv(t, left_of(group), round.tag),
                   [t, is = round.of(left_of(group))] { return all_are(t, is); });
     }},
    {"send and recv_any",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor t = round.zeros(group, {round.n});
       Begun received = brings(group.recv_any(t, round.tag), [t, round, from = left_of(group)](int sender) {
         return sender == from && all_are(t, round.of(from));
       });
       return both(group.send(round.own(group, {round.n}), right_of(group), round.tag),
                   std::move(received.done), std::move(received.right));
     }},
    {"batch",
     [](const Group& group, const Round& round) -> Begun {
       const at::Tensor t = round.zeros(group, {round.n});
       return {
           group.batch({{PointToPoint::Kind::recv, t, left_of(group), round.tag},
                        {PointToPoint::Kind::send, round.own(group, {round.n}), right_of(group), round.tag}}),
           [t, is = round.of(left_of(group))] { return all_are(t, is); }};
     }},
    {"all_gather_object",
     [](const Group& group, const Round& round) -> Begun {
       return brings(group.all_gather_object(round.text(group.rank())),
                     [round, ranks = group.size()](const auto& all) { return are_texts(all, round, ranks); });
     }},
    {"gather_object",
     [](const Group& group, const Round& round) -> Begun {
       const int root = round.root(group), ranks = group.rank() == root ? group.size() : 0;
       return brings(group.gather_object(round.text(group.rank()), root),
                     [round, ranks](const auto& all) { return are_texts(all, round, ranks); });
     }},
    {"broadcast_object",
     [](const Group& group, const Round& round) -> Begun {
       const int root = round.root(group);
       return brings(group.broadcast_object(round.text(group.rank()), root),
                     [is = round.text(root)](const std::string& text) { return text == is; });
     }},
    {"scatter_object",
     [](const Group& group, const Round& round) -> Begun {
       std::vector<std::string> all;
       for (int rank = 0; rank < group.size(); ++rank) all.push_back(round.text(rank));
       return brings(group.scatter_object(all, round.root(group)),
                     [is = round.text(group.rank())](const std::string& text) { return text == is; });
     }},
    {"split",  // even ranks and odd ones, backwards
     [](const Group& group, const Round&) -> Begun {
       const Backend backend = group.backend() == GroupBackend::messages ? Backend::messages
                               : group.backend() == GroupBackend::memory ? Backend::memory
                                                                         : Backend::hosts;
       const int color = group.rank() % 2, size = (group.size() + 1 - color) / 2;
       return brings(group.split(color, -group.rank(), options_of(backend, group.rank())),
                     [size, rank = size - 1 - group.rank() / 2](const std::optional<Group>& part) {
                       return part && part->size() == size && part->rank() == rank;
                     });
     }},
};

}  // namespace weft::collectives::testing
