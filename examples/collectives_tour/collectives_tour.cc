// Collectives from the ground up: messages between two ranks, collectives of all, an all-reduce made by hand
// of messages, and a small model that all ranks train on their parts of the data by averaging gradients.
// Every part prints what can be checked.
//
// As it is, it starts its ranks on this machine; where weft launch, torchrun, mpirun or srun start it, it is
// one of theirs. --alone trains the same model in one process, on all of the data: the losses are the same.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/rpc/membership/run_job.h>
#include <weft/rpc/rpc.h>

#include <CLI/CLI.hpp>

#include "collectives_tour/moons.h"
#include "collectives_tour/ring.h"

using namespace weft;
using collectives::Group;
using collectives::ReduceOp;

namespace {

constexpr std::int64_t points = 960;  // that 1 to 6 ranks and 8 have equal parts of
constexpr double learning_rate = 1;

template <class... Arguments>
void say(const Group& group, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (group.rank() != 0) return;  // once for all
  fmt::print("{}\n", fmt::format(text, std::forward<Arguments>(arguments)...));
}

std::vector<float> list(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel()};
}

// How many ranks say so.
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

  // A token goes around; each rank adds its number to it. get() waits, and here there is nothing else to do.
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

  // All give something to the next at once. A send is complete when it has been received: if each rank waited
  // for its own before it received, all would wait for ever. So both are begun first.
  at::Tensor mine = at::full({3}, rank, at::kFloat), theirs = at::empty({3});
  auto sent = group.send(mine, next);
  auto received = group.recv(theirs, before);
  received.get();
  sent.get();
  say(group, "neighbours: rank 0 has {} of rank {}", list(theirs), before);
}

// --- 2. All at once ---

void all_together(const Group& group) {
  at::Tensor sum = at::full({2}, group.rank() + 1, at::kFloat), largest = sum.clone(), first = sum.clone();
  at::Tensor each = at::empty({group.size()});
  // Every rank begins the same ones, in one order. They are under way together; each is waited for in the
  // end.
  auto summed = group.all_reduce(sum);
  auto compared = group.all_reduce(largest, ReduceOp::max);
  auto given = group.broadcast(first, 0);
  auto gathered = group.all_gather(each, at::full({1}, group.rank() + 1, at::kFloat));
  summed.get(), compared.get(), given.get(), gathered.get();
  say(group, "all_reduce: the sum is {}, the largest {}", list(sum), list(largest));
  say(group, "broadcast: {}", list(first));
  say(group, "all_gather: {}", list(each));

  // A group of some: the even ranks' and the odd ranks'.
  const Group half = *group.split(group.rank() % 2).get();
  at::Tensor ranks = at::full({1}, group.rank(), at::kFloat);
  half.all_reduce(ranks).get();
  say(group, "split: rank 0 is one of {}, whose ranks add up to {}", half.size(), ranks.item<float>());
}

// --- 3. An all-reduce made by hand ---

void ring(const Group& group) {
  // Whole numbers, and small ones: float32 adds them exactly, in whichever order.
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
  auto model = make_model(static_cast<std::uint64_t>(group.rank()));  // another one on each rank,
  data_parallel::DistributedDataParallel ddp{group, model};           // and now that of rank 0
  const std::vector<at::Tensor> parameters = model->parameters();
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(learning_rate));

  // Backward averages the gradients of the ranks' parts of the data, and all ranks take the same step.
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

  // No rank has sent its parameters: they are the same since all began with the same and took the same steps.
  bool same = true;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor first = parameter.detach().clone();
    group.broadcast(first, 0).get();
    same = same && at::equal(first, parameter);
  }
  say(group, "parameters: those of rank 0 on {} of {} ranks", count(group, same), group.size());
}

// The same in one process, on all of the data: the mean of equal parts' gradients is the gradient of the
// whole.
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
  CLI::App app{"Messages, collectives, a ring made by hand, and a model whose gradients all ranks average."};
  std::int64_t steps = 201;
  std::size_t ranks = 4;
  bool alone = false;
  app.add_option("--steps", steps)->capture_default_str();
  app.add_option("--ranks", ranks, "that are started here")->capture_default_str()->check(CLI::Range(1, 64));
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
