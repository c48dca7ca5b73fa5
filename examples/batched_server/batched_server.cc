// A server answers the requests of many clients with one forward of its network for many requests. Each
// client has many requests in flight, and compares each answer with its own computation.
//
// Without a launcher the program starts the server and its clients on this machine. Under weft launch,
// torchrun, mpirun or srun the program is one of these processes. dist_optim::BatchedService joins the
// requests.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/dist_optim/serve/batched_service.h>
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <CLI/CLI.hpp>

using namespace weft;

namespace {

constexpr std::int64_t features = 64, classes = 10;

struct Settings {
  std::int64_t clients = 4, requests = 100;  // requests: the number for each client
  std::size_t max_rows = 64;
  std::int64_t window = 2000;
};

torch::nn::Sequential network() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(features, 256), torch::nn::ReLU(),
                               torch::nn::Linear(256, classes));
}

// [N, features] -> [N, classes]
using Classifier = dist_optim::BatchedService<"classify", at::Tensor, at::Tensor>;

std::size_t rows_of(const at::Tensor& question) {
  const bool is_valid = question.dim() == 2 && question.size(0) > 0 && question.size(1) == features &&
                        question.scalar_type() == at::kFloat;
  if (!is_valid)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "classify: expected float rows of 64 features");
  return static_cast<std::size_t>(question.size(0));
}

void serve(rpc::Job& job, const Settings& settings) {
  std::int64_t largest = 0;  // rows of a forward
  const auto classifier = dist_optim::batched<"classify">(
      [network = network(), &largest](const std::vector<at::Tensor>& questions) mutable {
        const torch::NoGradGuard no_grad;
        std::vector<std::int64_t> sizes;
        for (const at::Tensor& question : questions) sizes.push_back(question.size(0));
        const at::Tensor rows = at::cat(questions);
        largest = std::max(largest, rows.size(0));
        return network->forward(rows).split_with_sizes(sizes);
      },
      {.max_batch = settings.max_rows,
       .max_delay = std::chrono::microseconds{settings.window},
       .max_padded = settings.max_rows,
       .length = rows_of});
  job.agent().serve(classifier);
  job.join().get();
  job.serve_until_shutdown();
  const auto stats = classifier->stats();
  fmt::print("requests={} forwards={} largest={}\n", stats.requests, stats.batches, largest);
}

rpc::Task<void> ask(rpc::Job& job, std::int64_t requests) {
  co_await job.join();
  const rpc::Peer server = job.agent().peer("worker0");
  torch::manual_seed(100 + job.rank());
  std::vector<at::Tensor> questions;
  std::vector<rpc::Future<at::Tensor>> in_flight;
  for (std::int64_t i = 0; i < requests; ++i) {
    questions.push_back(torch::randn({1 + i % 4, features}));
    in_flight.push_back(server.call<&Classifier::run>(questions.back()));
  }
  const auto answers = co_await rpc::when_all(std::move(in_flight));

  torch::NoGradGuard no_grad;
  auto own = network();
  std::size_t right = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto expected = own->forward(questions[i]);
    right += answers[i].sizes() == expected.sizes() && answers[i].allclose(expected, 1e-4, 1e-5) ? 1 : 0;
  }
  fmt::print("client{} answers={} right={}\n", job.rank(), answers.size(), right);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Serves a network to many clients, with one forward for many requests."};
  app.add_option("--clients", settings.clients)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--requests", settings.requests, "of each client, all in flight at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-rows", settings.max_rows, "rows of one forward, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--window", settings.window, "microseconds that a request waits for other requests, at most")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  const auto run = [&](rpc::Job& job) {
    job.rank() == 0 ? serve(job, settings) : job.agent().run(ask(job, settings.requests));
  };
  const auto processes = static_cast<std::size_t>(settings.clients) + 1;
  return rpc::run_job(argc, argv, tensor::layers(), run, {.processes = processes});
}
