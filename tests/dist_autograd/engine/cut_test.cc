// Compares one graph that is cut into the parts of several workers with the same uncut graph under LibTorch's
// engine. Gradients may arrive in any order: the network is a mailbox that is emptied in random order. Send
// and Recv represent the nodes that the layer above inserts.
#include <torch/torch.h>

#include "tests/dist_autograd/engine/support.h"

#include <algorithm>
#include <memory>
#include <random>

namespace weft::dist_autograd::engine_cut_test {
namespace {

using testing::leaf;
using testing::MapSink;
using testing::numbers;
using testing::source_of;
using torch::autograd::variable_list;

struct Message {
  std::size_t send;
  variable_list gradients;
};

// The last node of the receiver's part. It sends its gradients to the sender of the tensors.
struct Recv : torch::autograd::Node {
  Recv(std::size_t send, std::vector<Message>& mailbox) : send(send), mailbox(mailbox) {}
  variable_list apply(variable_list&& gradients) override {
    mailbox.push_back({send, std::move(gradients)});
    return {};
  }
  const std::size_t send;
  std::vector<Message>& mailbox;
};

enum class Mode {
  fast,   // every send of the pass is expected; a receiver that no root reaches replies without gradients
  smart,  // the live sends are found from the roots; a send carries several tensors, used or not
  smart_per_tensor,  // each tensor has its own nodes, so that unused ones are not live: exactly what uncut
                     // graphs run
};

// Workers in one process.
class Cluster {
 public:
  Cluster(std::size_t workers, Mode mode) : mode_(mode), sinks_(workers) {}

  // Returns `tensors` of worker `from` as another worker receives them.
  variable_list move(std::size_t from, const variable_list& tensors) {
    variable_list received;
    if (mode_ == Mode::smart_per_tensor) {
      for (const auto& tensor : tensors) received.push_back(connect(from, {tensor})[0]);
      return received;
    }
    return connect(from, tensors);
  }

  void add_root(std::size_t worker, const at::Tensor& root, const at::Tensor& gradient) {
    roots_.push_back({worker, root, gradient});
  }

  void backward(std::mt19937& random) {
    const bool smart = mode_ != Mode::fast;
    std::vector<bool> reached(sends_.size());
    std::vector<std::size_t> wave;
    std::vector<std::unique_ptr<NodeExecutor>> executors;
    for (auto& sink : sinks_) {
      executors.push_back(
          std::make_unique<NodeExecutor>(sink, ExecutorOptions{}, [&](torch::autograd::Node& node) {
            if (auto* recv = dynamic_cast<Recv*>(&node)) {
              reached[recv->send] = true;
              wave.push_back(recv->send);
            }
          }));
    }
    for (const auto& root : roots_) executors[root.worker]->add_root(root.tensor, root.gradient);
    if (smart) {
      while (!wave.empty()) {
        const auto& send = sends_[take_any(wave, random)];
        executors[send.from]->expect(send.node);
      }
    } else {
      for (const auto& send : sends_) executors[send.from]->expect(send.node);
    }
    for (auto& executor : executors) executor->plan();
    for (std::size_t id = 0; id < sends_.size() && !smart; ++id) {
      if (!reached[id]) mailbox_.push_back({id, variable_list(sends_[id].node->num_inputs())});
    }

    // Runs and deliveries in any order: an executor may get several messages before it runs again.
    auto below = [&](std::size_t bound) { return random() % bound; };
    while (!std::all_of(executors.begin(), executors.end(), [](auto& e) { return e->complete(); })) {
      if (!mailbox_.empty() && below(3) > 0) {
        Message message = take_any(mailbox_, random);
        const auto& send = sends_[message.send];
        executors[send.from]->deliver(send.node, std::move(message.gradients));
      } else {
        executors[below(executors.size())]->run();
      }
      const bool stuck = mailbox_.empty() && ++idle_ > 1000 * executors.size();
      ASSERT_FALSE(stuck) << "waits for " << ::testing::PrintToString(executors[0]->blocked());
      if (!mailbox_.empty()) idle_ = 0;
    }
    ASSERT_TRUE(mailbox_.empty());
  }

  const MapSink& sink(std::size_t worker) const { return sinks_[worker]; }

 private:
  struct Send {
    NodePtr node;
    std::size_t from;
  };
  struct Root {
    std::size_t worker;
    at::Tensor tensor, gradient;
  };

  // Connects one pair of nodes.
  variable_list connect(std::size_t from, const variable_list& tensors) {
    const std::size_t id = sends_.size();
    variable_list differentiable, received;
    auto recv = make_node<Recv>(id, mailbox_);
    for (const auto& tensor : tensors) {
      received.push_back(tensor.detach().clone());
      if (!tensor.requires_grad()) continue;
      differentiable.push_back(tensor);
      torch::autograd::impl::set_gradient_edge(received.back(),
                                               {recv, recv->add_input_metadata(received.back())});
    }
    sends_.push_back({source_of("send " + std::to_string(id), differentiable), from});
    return received;
  }

  template <class T>
  static T take_any(std::vector<T>& all, std::mt19937& random) {
    std::swap(all[random() % all.size()], all.back());
    T taken = std::move(all.back());
    all.pop_back();
    return taken;
  }

  const Mode mode_;
  std::vector<MapSink> sinks_;
  std::vector<Send> sends_;
  std::vector<Root> roots_;
  std::vector<Message> mailbox_;
  std::size_t idle_ = 0;
};

// The results are exact, except for the order in which gradients are summed.
void expect_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!expected.defined()) return;
  const double error = (actual - expected).abs().max().item<double>();
  EXPECT_LE(error, 1e-12 * (1.0 + expected.abs().max().item<double>())) << what;
}

// Runs a random program, which is the same for the same seed. With a cluster, each value is on a worker and
// is moved to the worker that uses it. Without a cluster, the program builds one graph.
struct Random {
  struct Value {
    at::Tensor tensor;
    std::size_t worker;
  };

  Random(unsigned seed, Cluster* cluster, std::size_t workers)
      : random(seed), cluster(cluster), workers(workers) {
    for (std::uint64_t i = 0, count = 1 + below(4); i < count; ++i) {
      leaves.push_back({leaf({3, 3}, i), below(workers)});
      values.push_back(leaves.back());
    }
    values.push_back({numbers({3, 3}, 99), below(workers)});  // needs no gradient
    for (std::size_t i = 0, count = 5 + below(40); i < count; ++i) step();
    for (std::size_t i = 0, count = 1 + below(3); i < count; ++i) {
      const Value& root = values[values.size() - 1 - below(values.size())];
      if (root.tensor.requires_grad()) roots.push_back(root);
    }
  }

  std::size_t below(std::size_t bound) { return random() % bound; }

  // Chooses operands, mostly recent ones. They are moved to `worker` one by one. If they are on one worker,
  // one message may move them, and it may also have an unused tensor.
  variable_list operands(std::size_t worker) {
    std::vector<Value> chosen;
    for (int i = 0; i < 2; ++i) {
      const std::size_t range = below(2) == 0 ? values.size() : std::min<std::size_t>(3, values.size());
      chosen.push_back(values[values.size() - 1 - below(range)]);
    }
    const bool together = chosen[0].worker == chosen[1].worker && below(2) == 0;
    const Value extra = values[below(values.size())];
    variable_list local{chosen[0].tensor, chosen[1].tensor};
    if (!cluster) return local;
    if (together && chosen[0].worker != worker) {
      if (extra.worker == chosen[0].worker) local.push_back(extra.tensor);
      local = cluster->move(chosen[0].worker, local);
      local.resize(2);
      return local;
    }
    for (std::size_t i : {0u, 1u}) {
      if (chosen[i].worker != worker) local[i] = cluster->move(chosen[i].worker, {chosen[i].tensor})[0];
    }
    return local;
  }

  void step() {
    const std::size_t worker = below(workers);
    const auto in = operands(worker);
    const auto a = in[0], b = in[1];
    variable_list out;
    switch (below(7)) {
      case 0:
        out = {a + b};
        break;
      case 1:
        out = {torch::tanh(a * b)};
        break;
      case 2:
        out = {torch::tanh(a.mm(b))};
        break;
      case 3:
        out = {a.sin() - b.t()};
        break;
      case 4:
        out = {a.mean(0, /*keepdim=*/true) + b.sin()};
        break;
      case 5:
        out = torch::cat({a, b.cos()}).split(3);
        break;  // two outputs of one node
      default:
        out = {torch::sigmoid(a)};
        break;
    }
    for (const auto& tensor : out) {
      if (tensor.requires_grad() && below(4) == 0) {
        const std::size_t id = hooked.size();
        hooked.emplace_back();
        tensor.register_hook([this, id](const at::Tensor& g) {
          hooked[id].push_back(g.defined() ? g.detach().clone() : g);
          return g.defined() ? g * 0.75 : g;
        });
      }
      values.push_back({tensor, worker});
    }
  }

  std::mt19937 random;
  Cluster* cluster;
  std::size_t workers;
  std::vector<Value> leaves, values, roots;
  std::vector<variable_list> hooked;  // the gradients that each hook received
};

TEST(EngineCut, RandomGraphs) {
  int ran = 0, calls = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::size_t workers = 1 + seed % 4;
    const Mode mode = static_cast<Mode>(seed / 4 % 3);
    Random whole(seed, nullptr, workers);
    if (whole.roots.empty()) continue;
    Cluster cluster(workers, mode);
    Random cut(seed, &cluster, workers);
    ASSERT_EQ(cut.values.size(), whole.values.size());

    variable_list roots, gradients;
    for (std::size_t i = 0; i < whole.roots.size(); ++i) {
      roots.push_back(whole.roots[i].tensor);
      gradients.push_back(numbers(roots[i].sizes(), 100 + i));
      cluster.add_root(cut.roots[i].worker, cut.roots[i].tensor, gradients[i]);
    }
    torch::autograd::backward(roots, gradients);
    std::mt19937 order(seed + 7);
    cluster.backward(order);
    if (HasFatalFailure()) return;

    for (std::size_t i = 0; i < whole.leaves.size(); ++i) {
      expect_close(cluster.sink(cut.leaves[i].worker)[cut.leaves[i].tensor], whole.leaves[i].tensor.grad(),
                   "leaf " + std::to_string(i));
    }
    ASSERT_EQ(cut.hooked.size(), whole.hooked.size());
    for (std::size_t i = 0; i < whole.hooked.size(); ++i) {
      // If a message carries unused tensors, their nodes also run, on undefined gradients.
      if (mode != Mode::smart_per_tensor) {
        for (auto* seen : {&cut.hooked[i], &whole.hooked[i]}) {
          std::erase_if(*seen, [](const at::Tensor& g) { return !g.defined(); });
        }
      }
      ASSERT_EQ(cut.hooked[i].size(), whole.hooked[i].size()) << "calls of hook " << i;
      ASSERT_LE(cut.hooked[i].size(), 1u);
      if (whole.hooked[i].empty()) continue;
      expect_close(cut.hooked[i][0], whole.hooked[i][0], "hook " + std::to_string(i));
      ++calls;
    }
    ++ran;
  }
  EXPECT_GE(ran, 500);
  EXPECT_GE(calls, 1000);
}

}  // namespace
}  // namespace weft::dist_autograd::engine_cut_test
