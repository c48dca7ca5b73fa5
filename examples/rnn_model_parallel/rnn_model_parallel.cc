// An LSTM learns to write, character by character. One worker has the embedding and the decoder, another
// worker has the recurrent part, and the driver has no parameters. Each worker steps its own parameters.
//
// Without a launcher the program starts the driver and the two workers on this machine. Under weft launch,
// torchrun, mpirun or srun the program is one of these processes.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include <CLI/CLI.hpp>

#include "rnn_model_parallel/language_model.h"
#include "rnn_model_parallel/text.h"

using namespace weft;

namespace {

constexpr std::int64_t width = 128, columns = 32, window = 32;
constexpr double learning_rate = 5e-3;

struct Settings {
  std::string text = "/usr/share/common-licenses/GPL-3";  // Debian installs it on all machines
  std::int64_t steps = 300;
};

rpc::Task<void> learn(rpc::Agent& agent, rref::RRef<Coder> coder, rref::RRef<Recurrent> recurrent, Text& text,
                      std::int64_t steps) {
  dist_optim::DistributedOptimizer optimizer{agent, torch::optim::AdamOptions(learning_rate),
                                             dist_optim::synchronous, coder, recurrent};
  for (std::int64_t step = 0; step < steps; ++step) {
    auto [characters, following] = text.next(window);
    dist_autograd::Pass pass{agent};
    auto embedded = coder.remote<&Coder::embed>(pass, characters);           // the result stays on worker1
    auto hidden = recurrent.remote<&Recurrent::forward>(pass, embedded);     // worker1 -> worker2
    auto loss = co_await coder.call<&Coder::loss>(pass, hidden, following);  // worker2 -> worker1
    co_await pass.backward(loss);
    co_await optimizer.step(pass);

    if (step % 10 != 0) continue;
    fmt::print("step={} loss={:.3f}\n", step, loss.item().toDouble());
  }
}

// Calls without a pass record no graph.
rpc::Task<std::string> write(rref::RRef<Coder> coder, rref::RRef<Recurrent> recurrent, const Text& text,
                             std::string written, std::size_t length) {
  co_await recurrent.call<&Recurrent::forget>();
  for (at::Tensor unread = text.encode(written); written.size() < length; written += text.decode(unread)) {
    auto embedded = coder.remote<&Coder::embed>(unread);
    auto hidden = recurrent.remote<&Recurrent::forward>(embedded);
    unread = co_await coder.call<&Coder::draw>(hidden);
  }
  co_return written;
}

rpc::Task<void> drive(rpc::Agent& agent, Settings settings) {
  Text text(settings.text, columns);
  auto coder = rref::create<Coder>(agent.peer("worker1"), text.characters(), width, 1);
  auto recurrent = rref::create<Recurrent>(agent.peer("worker2"), width, 2);
  co_await learn(agent, coder, recurrent, text, settings.steps);
  fmt::print("it writes: {}\n", co_await write(coder, recurrent, text, text.beginning(), 200));
}

void run(rpc::Job& job, const Settings& settings) {
  job.agent().allow_create<Coder>();
  job.agent().allow_create<Recurrent>();
  job.join().get();
  if (job.rank() == 0) job.agent().run(drive(job.agent(), settings));
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Trains a language model of characters in two parts, each on one worker."};
  app.add_option("--text", settings.text, "a file to learn from")->capture_default_str();
  app.add_option("--steps", settings.steps)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  return rpc::run_job(argc, argv, dist_optim::layers(), [&](rpc::Job& job) { run(job, settings); },
                      {.processes = 3});
}
