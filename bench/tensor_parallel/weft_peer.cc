// The block of weft's layers on two ranks, the whole block of LibTorch's layers, its parts, and two
// all-reduces.
#include "bench/tensor_parallel/model.h"
#include "bench/tensor_parallel/work.h"

#include "bench/collectives/ranks.h"
#include "bench/harness/statistics.h"

#include <ATen/record_function.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>

namespace weft::bench {
namespace {

using collectives::Group;

// Measures, during its lifetime, the time in which the backward of column-parallel layers on this thread does
// not compute. In this time the layers start the all-reduces of the input's gradients and wait for them.
class Waits {
 public:
  Waits() {
    current() = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&begin, &end)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~Waits() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

  // The time since the last call of take_us().
  double take_us() {
    if (std::exchange(layers_, 0) == 0)
      throw std::logic_error("no backward of a ColumnParallelLinear was seen: has its node another name?");
    return std::chrono::duration<double, std::micro>(std::exchange(waited_, {})).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static Waits*& current() {
    static thread_local Waits* value = nullptr;
    return value;
  }
  static bool is_layer(const at::RecordFunction& call) {
    return call.scope() == at::RecordScope::BACKWARD_FUNCTION &&
           std::strstr(call.name(), "ColumnProduct") != nullptr;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    Waits& self = *current();
    if (is_layer(call)) {
      self.within_ = true;
      ++self.layers_;
      self.waited_ -= Clock::now().time_since_epoch();
    } else if (self.within_ && self.depth_++ == 0) {
      self.waited_ += Clock::now().time_since_epoch();
    }
    return nullptr;
  }
  static void end(const at::RecordFunction& call, at::ObserverContext*) {
    Waits& self = *current();
    if (is_layer(call)) {
      self.within_ = false;
      self.waited_ += Clock::now().time_since_epoch();
    } else if (self.within_ && --self.depth_ == 0) {
      self.waited_ -= Clock::now().time_since_epoch();
    }
  }

  const at::RecordFunctionGuard records_{true};
  at::CallbackHandle handle_ = 0;
  Clock::duration waited_{};  // the sum of the ends of such times, minus the sum of their beginnings
  bool within_ = false;       // the thread runs the backward of a layer
  int depth_ = 0;             // the nesting depth of operators within this backward
  int layers_ = 0;            // the number of layers whose backward has begun
};

at::Tensor activations(std::int64_t width) { return at::randn({rows, tokens, width}); }

template <class Model>
std::function<void()> step_of(Model& model, const at::Tensor& x) {
  return [&model, x] {
    model.zero_grad();
    x.mutable_grad().reset();
    model.forward(x).square().mean().backward();
  };
}

// Rank 0 reports.
void measure(RankEnd& end, const Group& group, const std::function<void()>& step,
             const std::function<void(Figures&)>& add) {
  Rounds rounds(end);
  rounds.run(step, tell_all(group));
  if (end.rank() != 0) return;
  Figures figures = rounds.figures();
  add(figures);
  end.report(figures);
}

void add_rate(Figures& figures) { figures["steps_per_s"] = 1e6 / figures.at("p50_us"); }

void run_block(const Work& work, const Group& group, RankEnd& end) {
  auto block = split_block(group, work.width);
  const at::Tensor x = activations(work.width).requires_grad_();
  if (work.free && end.rank() != 0) {
    const at::Tensor other = at::zeros_like(x);
    return measure(
        end, group,
        [&] {
          for (int i = 0; i < 4; ++i) group.all_reduce(other).get();
        },
        add_rate);
  }
  Waits waits;
  std::vector<double> waited;
  const auto step = step_of(block, x);
  measure(
      end, group,
      [&] {
        step();
        waited.push_back(waits.take_us());
      },
      [&](Figures& figures) {
        add_rate(figures);
        figures["waited_us"] = median(waited);
      });
}

void run_parts(const Work& work, const Group& group, RankEnd& end) {
  auto part = part_of_block(work.width, ranks);
  measure(end, group, step_of(part, activations(work.width).requires_grad_()), add_rate);
}

void run_all_reduces(const Work& work, const Group& group, RankEnd& end) {
  const at::Tensor gradient = activations(work.width);
  measure(
      end, group,
      [&] {
        for (int layer = 0; layer < 2; ++layer) group.all_reduce(gradient).get();
      },
      [](Figures&) {});
}

void on_ranks(const Work& work, const std::string& store, RankEnd& end,
              void (*run)(const Work&, const Group&, RankEnd&)) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  rpc::MemberOptions options = member_options(end, store, ranks);
  rpc::Job job(options, group_layers());
  job.join().get();
  run(work, Group::create(job.agent()).get(), end);
  job.leave().get();  // otherwise the other rank reports this rank as lost
}

Contender contender(const char* name, const Work& work, void (*run)(const Work&, const Group&, RankEnd&)) {
  Notes notes{{"caller", "main"}};
  if (work.free) notes["cores"] = "any";
  return Contender{name, notes, [work, run](const Setting& setting) {
                     const Setting own = work.free ? Setting{setting.budget, {}} : setting;
                     return measure_members(ranks, own, [&](const std::string& store, RankEnd& end) {
                       on_ranks(work, store, end, run);
                     });
                   }};
}

}  // namespace

std::optional<Contender> weft_peer(const Work& work) { return contender("weft", work, run_block); }
std::optional<Contender> all_reduce_peer(const Work& work) {
  return contender("all_reduce", work, run_all_reduces);
}

std::optional<Contender> parts_peer(const Work& work) {
  if (work.free) return std::nullopt;
  return contender("parts", work, run_parts);
}
std::optional<Contender> local_peer(const Work& work) {
  if (work.free) return std::nullopt;
  return Contender{"local", {{"caller", "main"}}, [work](const Setting& setting) {
                     return measure_ranks(1, setting, [&](RankEnd& end) {
                       at::set_num_threads(1);
                       torch::manual_seed(1);
                       auto block = part_of_block(work.width, 1);
                       const at::Tensor x = activations(work.width).requires_grad_();
                       Rounds rounds(end);
                       rounds.run(step_of(block, x), [](std::size_t next) { return next; });
                       Figures figures = rounds.figures();
                       add_rate(figures);
                       end.report(figures);
                     });
                   }};
}

}  // namespace weft::bench
