// Runs and fine-tunes models of the Llama family, as Hugging Face publishes them:
//
//   llama generate FOLDER --prompt "Once upon a time"
//   llama train FOLDER text.txt --out FOLDER2 -n 8 --data 2 --pipeline 2 --tensor 2
//
// The ranks of the dimension `data` have different rows of each batch and split the training state. The ranks
// of `pipeline` have different layers of the model. The ranks of `tensor` have parts of each layer. The
// losses are the same for every mesh. `transformers` reads the new folder.
#include <fmt/ranges.h>
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/rpc/job/run_job.h>

#include "llama/generate.h"
#include "llama/settings.h"
#include "llama/tokenizer.h"
#include "llama/train.h"

using namespace weft;

int main(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  at::set_num_threads(settings.threads);
  torch::manual_seed(settings.seed);  // tensor parallel layers need equal initial values on all ranks
  const auto run = [&](rpc::Agent& agent) {
    if (settings.command == "tokens")
      fmt::print("{}\n", fmt::join(Tokenizer(settings.model).encode(read_file(settings.text)), " "));
    else if (settings.command == "generate")
      generate(agent, settings);
    else
      train(agent, settings);
  };
  return rpc::run_job(argc, argv, {collectives::layer()}, run,
                      {.processes = static_cast<std::size_t>(settings.processes())});
}
