// weights::load_into() a module.
#include <weft/parallel/weights/module.h>

#include <fcntl.h>
#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "bench/harness/ranks.h"
#include "bench/weights/work.h"

namespace weft::bench {
namespace {

struct Model : torch::nn::Module {
  Model() {
    for (int i = 0; i < matrices; ++i)
      register_parameter("matrix" + std::to_string(i), at::empty({rows, columns}));
  }
};

void make_file(const std::filesystem::path& path) {
  if (std::filesystem::exists(path)) return;
  std::map<std::string, at::Tensor> tensors;
  for (int i = 0; i < matrices; ++i)
    tensors["matrix" + std::to_string(i)] = at::full({1}, i, at::kFloat).expand({rows, columns});
  const auto sink = weights::create_sink(path);
  sink->declare(weights::forms_of(tensors));
  for (const auto& [name, tensor] : tensors) sink->write(name, tensor);
  sink->finish();
}

void drop_pages(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

Outcome load(const Work& work, const Setting& setting, bool checksums) {
  const std::filesystem::path path = file_of(work);
  return measure_ranks(1, setting, [&](RankEnd& end) {
    make_file(path);
    Model model;
    LatencyMeter meter(end.budget());
    for (bool more = true; more;) {
      if (work.cold) drop_pages(path);
      meter.begin();
      weights::load_into(model, *weights::open_source(path, {.checksums = checksums}));
      more = meter.end();
      const at::Tensor last = model.parameters().back();
      expect_answer(last.flatten()[0].item<float>() == matrices - 1 &&
                    last.flatten()[-1].item<float>() == matrices - 1);
    }
    Figures figures = meter.figures();
    figures["GBps"] = bytes / 1e3 / figures.at("p50_us");
    end.report(figures);
  });
}

}  // namespace

std::optional<Contender> weft_peer(const Work& work) {
  return Contender{"weft", {}, [work](const Setting& setting) { return load(work, setting, true); }};
}

std::optional<Contender> weft_unchecked_peer(const Work& work) {
  if (work.extension == "safetensors") return std::nullopt;
  return Contender{
      "weft-unchecked", {}, [work](const Setting& setting) { return load(work, setting, false); }};
}

}  // namespace weft::bench
