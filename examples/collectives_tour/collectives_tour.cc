// A tour of collectives: messages between two ranks, collectives of all ranks, an all-reduce written with
// messages, and a small model that all ranks train by averaging gradients. Each part prints a result that can
// be checked.
//
// Without a launcher the program starts its ranks on this machine. Under weft launch, torchrun, mpirun or
// srun the program is one of the ranks. --alone trains the same model in one process, on all of the data: the
// losses are the same.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>

#include <CLI/CLI.hpp>

#include "collectives_tour/moons.h"
#include "collectives_tour/ring.h"

using namespace weft;
using collectives::Group;
using collectives::ReduceOp;

namespace {

constexpr std::int64_t points = 960;  // equal parts for 1 to 6 and for 8 ranks
constexpr double learning_rate = 1;

template <class... Arguments>
void say(const Group& group, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (group.rank() != 0) return;  // one line in total, not one line of each rank
  fmt::print("{}\n", fmt::format(text, std::forward<Arguments>(arguments)...));
}

std::vector<float> list(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel()};
}

// The number of ranks on which `yes` is true.
int count(const Group& group, bool yes) {
  at::Tensor all = at::full({1}, yes ? 1 : 0, at::kInt);
  group.all_reduce(all).get();
  return all.item<int>();
}

// --- 1. From one rank to another ---

void point_to_point(const Group& group) {
  const int rank = group.rank(), ranks = group.size();
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  if (ranks == 1) return;

  // A token is sent around the ring, and each rank adds its number to the token. get() blocks, because this
  // rank has nothing else to do.
  at::Tensor token = at::zeros({1});
  if (rank == 0) {
    group.send(token, next).get();
    group.recv(token, before).get();
  } else {
    group.recv(token, before).get();
    token += rank;
    group.send(token, next).get();
  }
  say(group, "token: {} after {} ranks", token.item<float>(), ranks);

  // All ranks send to the next rank at once. A send completes when the receiver has received the message. If
  // each rank waited for its send before it receives, all ranks would wait forever. So each rank first starts
  // both operations.
  at::Tensor mine = at::full({3}, rank, at::kFloat), theirs = at::empty({3});
  auto sent = group.send(mine, next);
  auto received = group.recv(theirs, before);
  received.get();
  sent.get();
  say(group, "neighbours: rank 0 has {} of rank {}", list(theirs), before);
}

// --- 2. Collectives of all ranks ---

void all_together(const Group& group) {
  at::Tensor sum = at::full({2}, group.rank() + 1, at::kFloat), largest = sum.clone(), first = sum.clone();
  at::Tensor each = at::empty({group.size()});
  // All ranks call the same collectives in the same order. All four collectives are in flight before the
  // first wait.
  auto summed = group.all_reduce(sum);
  auto compared = group.all_reduce(largest, ReduceOp::max);
  auto given = group.broadcast(first, 0);
  auto gathered = group.all_gather(each, at::full({1}, group.rank() + 1, at::kFloat));
  summed.get(), compared.get(), given.get(), gathered.get();
  say(group, "all_reduce: the sum is {}, the largest {}", list(sum), list(largest));
  say(group, "broadcast: {}", list(first));
  say(group, "all_gather: {}", list(each));

  // Two groups: one of the even ranks, one of the odd ranks.
  const Group half = *group.split(group.rank() % 2).get();
  at::Tensor ranks = at::full({1}, group.rank(), at::kFloat);
  half.all_reduce(ranks).get();
  say(group, "split: rank 0 is one of {}, whose ranks add up to {}", half.size(), ranks.item<float>());
}

// --- 3. An all-reduce written with messages ---

void ring(const Group& group) {
  // Small integers, which float32 adds without rounding, in any order.
  const at::Tensor numbers = (at::arange(1'000'003) * (group.rank() + 1)).remainder(1000).to(at::kFloat);
  at::Tensor by_hand = numbers.clone(), by_group = numbers.clone();
  ring_all_reduce(group, by_hand);
  group.all_reduce(by_group).get();
  say(group, "ring: {} numbers, as all_reduce has them on {} of {} ranks", numbers.numel(),
      count(group, at::equal(by_hand, by_group)), group.size());
}

// --- 4. Training ---

void train(const Group& group, std::int64_t steps) {
  const Points mine = part_of(moons(points), group.rank(), group.size());
  auto model = make_model(static_cast<std::uint64_t>(group.rank()));  // different on each rank,
  data_parallel::DistributedDataParallel ddp{group, model};           // now equal to the model of rank 0
  const std::vector<at::Tensor> parameters = model->parameters();
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(learning_rate));

  // Backward averages the gradients of the ranks' parts of the data, so all ranks take the same step.
  for (std::int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = torch::cross_entropy_loss(ddp.forward(mine.places), mine.labels);
    loss.backward();
    optimizer.step();

    if (step % 20 != 0) continue;
    at::Tensor mean = loss.detach();
    group.all_reduce(mean, ReduceOp::avg).get();
    say(group, "step={} loss={:.6f}", step, mean.item<float>());
  }

  // Since the first step no rank has sent its parameters. They are equal because all ranks began with equal
  // parameters and took the same steps.
  bool same = true;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor first = parameter.detach().clone();
    group.broadcast(first, 0).get();
    same = same && at::equal(first, parameter);
  }
  say(group, "parameters: those of rank 0 on {} of {} ranks", count(group, same), group.size());
}

// The same training in one process, on all of the data: the mean of the gradients of equal parts is the
// gradient of the whole.
void train_alone(std::int64_t steps) {
  const Points all = moons(points);
  auto model = make_model(0);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(learning_rate));
  for (std::int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = torch::cross_entropy_loss(model->forward(all.places), all.labels);
    loss.backward();
    optimizer.step();
    if (step % 20 == 0) fmt::print("step={} loss={:.6f}\n", step, loss.item<float>());
  }
}

void tour(rpc::Agent& agent, std::int64_t steps) {
  const Group group = Group::create(agent).get();
  point_to_point(group);
  all_together(group);
  ring(group);
  train(group, steps);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Messages, collectives, an all-reduce by messages, and a model trained by all ranks."};
  std::int64_t steps = 201;
  std::size_t ranks = 4;
  bool alone = false;
  app.add_option("--steps", steps)->capture_default_str();
  app.add_option("--ranks", ranks, "number of ranks to start on this machine")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_flag("--alone", alone, "train in this process, without weft");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  if (alone) {
    train_alone(steps);
    return 0;
  }
  return rpc::run_job(argc, argv, {collectives::layer()}, [&](rpc::Agent& agent) { tour(agent, steps); },
                      {.processes = ranks});
}
