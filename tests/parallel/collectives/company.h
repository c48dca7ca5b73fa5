// Groups of agents of one process, with each backend, and helpers that their tests share.
#pragma once

#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/collectives/internal/group/collectives_layer.h>

#include <weft/rpc/rpc.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_codec.h>
#include <weft/rpc/transport/in_process.h>

#include <ATen/ATen.h>
#include <c10/util/FunctionRef.h>
#include <gtest/gtest.h>

#include <exception>
#include <ostream>
#include <thread>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::collectives::testing {

using namespace std::chrono_literals;
using rpc::ErrorKind;
using test::error_of;
using test::got;
using Tensors = std::vector<at::Tensor>;
using Futures = std::vector<rpc::Future<void>>;

// How the members of a group exchange tensors. placed: shared memory, which also contains the tensors; hosts:
// even ranks are on one host, odd ranks on another; uneven: hosts of one, three and two ranks.
enum class Backend : std::uint8_t { messages, memory, placed, hosts, uneven };
inline constexpr Backend backends[] = {Backend::messages, Backend::memory};  // of any number of ranks
inline constexpr Backend all_backends[] = {Backend::messages, Backend::memory, Backend::hosts,
                                           Backend::uneven};
inline bool on_hosts(Backend backend) { return backend == Backend::hosts || backend == Backend::uneven; }
inline int few(Backend backend) { return on_hosts(backend) ? 4 : 3; }  // ranks
inline GroupBackend expected(Backend backend, int ranks) {
  if (backend == Backend::messages || ranks == 1) return GroupBackend::messages;
  if (!on_hosts(backend)) return GroupBackend::memory;
  return ranks > 2 ? GroupBackend::hosts : GroupBackend::messages;
}
inline GroupOptions options_of(Backend backend, int rank, GroupOptions options = {}) {
  options.shared_memory = backend != Backend::messages;
  if (backend == Backend::hosts) options.host = rank % 2 == 0 ? "even" : "odd";
  if (backend == Backend::uneven) options.host = "abbbcc"[rank % 6];
  return options;
}
inline std::ostream& operator<<(std::ostream& out, Backend backend) {
  const char* const names[] = {"messages", "memory", "placed", "hosts", "uneven"};
  return out << names[static_cast<std::size_t>(backend)];
}

// Returns the options of a rank's devices.
using DevicesOf = std::function<nccl::DevicesOptions(int)>;
inline rpc::Layers company_layers(nccl::DevicesOptions devices = {}, rpc::Layers below = tensor::layers()) {
  rpc::Layers layers = std::move(below);
  layers.push_back(layer(std::move(devices)));
  return layers;
}

// The options of a member of a job that is alone in its process.
inline rpc::MemberOptions options_in_process(const std::string& store, int rank, int ranks) {
  rpc::MemberOptions options{{.name = "worker" + std::to_string(rank), .handler_threads = 1}};
  options.log = [](const rpc::LogRecord&) {};
  options.listen = {"tcp://127.0.0.1:0"};
  options.rendezvous = {
      .store = store, .rank = static_cast<std::size_t>(rank), .world_size = static_cast<std::size_t>(ranks)};
  return options;
}

// Members of a job, all in this process, and their groups.
class Company {
 public:
  static std::unique_ptr<test::JobStore> default_store() {
    if (test::between_hosts()) return std::make_unique<test::TcpJobStore>();
    return std::make_unique<test::InProcessJobStore>();
  }
  explicit Company(int ranks, Backend backend = Backend::messages,
                   std::unique_ptr<test::JobStore> store = default_store(),
                   const DevicesOf& devices = nullptr,
                   const std::function<void(rpc::AgentOptions&)>& adjust = nullptr,
                   const std::function<rpc::Layers(int)>& below = nullptr)
      : backend_(backend), store_(std::move(store)) {
    for (int rank = 0; rank < ranks; ++rank) {
      rpc::MemberOptions options{{.name = "worker" + std::to_string(rank), .handler_threads = 1}};
      options.in_process = store_->network;
      options.log = [](const rpc::LogRecord&) {};
      options.same_host = !test::between_hosts();
      options.listen = {rank == 0                    ? store_->url
                        : store_->network != nullptr ? "inproc://" + options.name
                                                     : "tcp://127.0.0.1:0"};
      options.rendezvous = {.store = store_->url,
                            .rank = static_cast<std::size_t>(rank),
                            .world_size = static_cast<std::size_t>(ranks),
                            .lease = std::chrono::hours{1}};
      if (adjust) adjust(options);
      rpc::Layers layers = company_layers(devices ? devices(rank) : nccl::DevicesOptions{},
                                          below ? below(rank) : tensor::layers());
      agents_.push_back(test::make_member(options, std::move(layers)));
    }
    Futures joined;
    for (auto& agent : agents_) joined.push_back(rpc::Job(*agent).wait_for(agents_.size()));
    for (auto& all : joined) got(std::move(all));
  }
  rpc::Agent& agent(int rank) { return *agents_[static_cast<std::size_t>(rank)]; }
  void end(int rank) { agents_[static_cast<std::size_t>(rank)].reset(); }

  std::vector<Group> groups(const GroupOptions& options = {}) {
    return groups_of([&](int rank) { return options_of(backend_, rank, options); });
  }
  // options: returns the options of a rank.
  std::vector<Group> groups_of(const std::function<GroupOptions(int)>& options) {
    std::vector<rpc::Future<Group>> made;
    for (auto& agent : agents_) made.push_back(Group::create(*agent, options(static_cast<int>(made.size()))));
    std::vector<Group> groups;
    for (auto& group : made) groups.push_back(got(std::move(group)));
    return groups;
  }

 private:
  const Backend backend_;
  std::unique_ptr<test::JobStore> store_;
  std::vector<std::unique_ptr<rpc::Agent>> agents_;
};

// Calls the same on every rank at the same time, and expects that all futures succeed.
template <class F>
void together(const std::vector<Group>& groups, F begin) {
  Futures in_progress;
  for (const Group& group : groups) in_progress.push_back(begin(group));
  for (auto& future : in_progress) got(std::move(future));
}

// The same for futures of values. Returns the results.
template <class F>
auto at_all(const std::vector<Group>& groups, F begin) {
  std::vector<decltype(begin(groups[0]))> futures;
  for (const Group& group : groups) futures.push_back(begin(group));
  std::vector<decltype(got(std::move(futures[0])))> results;
  for (auto& future : futures) results.push_back(got(std::move(future)));
  return results;
}
// Returns f(rank) of each rank.
template <class F>
Tensors of_ranks(int ranks, F f) {
  Tensors tensors;
  for (int rank = 0; rank < ranks; ++rank) tensors.push_back(f(rank));
  return tensors;
}

inline at::Tensor values(int rank, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return (at::arange(n).remainder(7) + rank + 1).to(type).view(shape);
}
inline at::Tensor sum_of(int ranks, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  at::Tensor sum = values(0, shape, type);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + values(rank, shape, type);
  return sum;
}
inline void expect_equal(const at::Tensor& a, const at::Tensor& b, const char* what = "") {
  EXPECT_TRUE(at::equal(a, b)) << what << "\n" << a << "\n" << b;
}

// Expects this error from the future of each rank.
inline void expect_all(Futures futures, ErrorKind kind, const std::vector<std::string>& words) {
  for (std::size_t rank = 0; rank < futures.size(); ++rank)
    for (const auto error = error_of([&] { got(std::move(futures[rank])); }); const auto& word : words) {
      ASSERT_TRUE(error) << "rank " << rank;
      EXPECT_EQ(error->kind(), kind) << error->what();
      EXPECT_NE(std::string(error->what()).find(word), std::string::npos)
          << "rank " << rank << ": '" << word << "' in: " << error->what();
    }
}

// What tests run on a rank. The functions that take it are no templates, because tests have hundreds of such
// lambdas.
using RankBody = c10::function_ref<void(const Group&)>;

// Runs f(group) for each rank, in a thread each, and rethrows the first error.
inline void on_ranks(const std::vector<Group>& groups, RankBody f) {
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        f(groups[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
}

// The same on ranks of a new company.
inline void on_ranks(int ranks, Backend backend, RankBody f) {
  Company company(ranks, backend);
  on_ranks(company.groups(), f);
}
inline void on_ranks(int ranks, RankBody f) { on_ranks(ranks, Backend::messages, f); }

// The futures of calls, which are begun in this order.
struct Several : Futures {
  template <class... F>
  explicit Several(F... futures) {
    (push_back(std::move(futures)), ...);
  }
};

class OfFew : public ::testing::TestWithParam<Backend> {
 protected:
  // Calls `begin` on all ranks except `missing`.
  template <class F>
  Futures but(int missing, F begin) {
    Futures futures;
    for (const Group& group : groups)
      if (group.rank() != missing) futures.push_back(begin(group));
    return futures;
  }
  const int ranks = few(GetParam());
  Company company{ranks, GetParam()};
  std::vector<Group> groups = company.groups();
};

}  // namespace weft::collectives::testing
