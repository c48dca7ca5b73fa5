// Agents of one process that own and train an embedding, and comparisons of the results.
#pragma once

#include <weft/dist_optim/embedding/sharded_embedding.h>
#include <weft/dist_optim/layers.h>
#include <weft/rpc/rpc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <numeric>

#include "tests/support/cluster.h"
#include "tests/support/errors.h"

namespace weft::dist_optim::embedding_test {

using dist_autograd::Pass;
using test::got;

// The agents are owner0 …, trainer0 …, all connected.
struct Owners {
  explicit Owners(std::size_t owners, std::size_t trainers = 1,
                  std::function<void(rpc::AgentOptions&)> adjust = {})
      : cluster(test::Cluster::Options{layers(), false, std::move(adjust)}) {
    for (std::size_t i = 0; i < owners; ++i)
      cluster.add("owner" + std::to_string(i)).template allow_create<EmbeddingShard>();
    for (std::size_t i = 0; i < trainers; ++i) cluster.add("trainer" + std::to_string(i));
    cluster.acquaint();
  }
  rpc::Agent& trainer(std::size_t i = 0) { return cluster["trainer" + std::to_string(i)]; }
  rpc::Peer peer(std::size_t owner, std::size_t trainer = 0) {
    return cluster.peer("trainer" + std::to_string(trainer), "owner" + std::to_string(owner));
  }
  std::vector<rpc::Peer> peers(std::size_t count, std::size_t trainer = 0) {
    std::vector<rpc::Peer> all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(peer(i, trainer));
    return all;
  }
  test::Cluster cluster;
};

inline EmbeddingOptions zeros(std::int64_t dimension, double rate = 1) {
  return {dimension, RowOptimizer::sgd(rate), {RowInitializer::Kind::zeros, 0, 0}, 0};
}

inline at::Tensor ids_of(const std::vector<std::int64_t>& ids) { return torch::tensor(ids, at::kLong); }

inline std::optional<rpc::ErrorKind> kind_of(auto&& f) {
  return test::kind_of([&] { return f(), 0; });
}

// Makes a step whose gradient is `gradient` for every occurrence of every id.
inline void touch(rpc::Agent& trainer, const ShardedEmbedding& embedding, const at::Tensor& ids,
                  double gradient = 1) {
  Pass pass{trainer};
  const at::Tensor rows = got(embedding.lookup(pass, ids));
  got(pass.backward(rows.sum() * gradient));
  got(embedding.step(pass));
}

struct TemporaryDirectory {
  TemporaryDirectory() {
    std::string made = (std::filesystem::temp_directory_path() / "weft-embedding-XXXXXX").string();
    if (::mkdtemp(made.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path = made;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace weft::dist_optim::embedding_test
