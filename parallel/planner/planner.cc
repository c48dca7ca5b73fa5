// The search first computes, without a simulation, a lower bound of the step time for each choice whose
// numbers divide. It then simulates the choices in the order of their bounds, except those whose bound is
// above the times of the plans that are already found. Since the bound does not depend on the memory, more
// memory never makes the best plan slower.
#include <weft/parallel/planner/planner.h>

#include <weft/parallel/planner/internal/predictor.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace weft::planner {
namespace {

struct Factorization {
  Grid grid;
  std::string problem = {};           // of the first choice that has one
  std::optional<Memory> memory = {};  // the least that did not fit
  bool possible = false;

  void does_not_fit(const Memory& needed) {
    if (!memory || needed.total() < memory->total()) memory = needed;
  }
};

std::vector<int> divisors(int number) {
  std::vector<int> found;
  for (int i = 1; i <= number; ++i)
    if (number % i == 0) found.push_back(i);
  return found;
}

std::vector<Factorization> factorizations(const Machine& machine, const Options& options) {
  const auto wanted = [](int asked, int size) { return asked == 0 || asked == size; };
  std::vector<Factorization> found;
  for (const int data : divisors(machine.ranks()))
    for (const int pipeline : divisors(machine.ranks() / data))
      if (const int tensor = machine.ranks() / data / pipeline;
          wanted(options.data, data) && wanted(options.pipeline, pipeline) && wanted(options.tensor, tensor))
        found.push_back({{.data = data, .pipeline = pipeline, .tensor = tensor}});
  const auto text = [](int asked) { return asked == 0 ? "any" : std::to_string(asked); };
  if (found.empty())
    refuse_plan("data " + text(options.data) + ", pipeline " + text(options.pipeline) + " and tensor " +
                text(options.tensor) + ", expected sizes whose product can be the machine's " +
                std::to_string(machine.ranks()) + " ranks");
  return found;
}

// Calls visit(choice) for all choices that the options permit.
template <class Visit>
void for_each_choice(const Grid& grid, const Model& model, const Machine& machine, const Options& options,
                     Visit&& visit) {
  const bool ordered = grid.data > 1 && grid.pipeline > 1 && machine.hosts > 1;
  for (const Order order : {Order::pipeline_inside, Order::data_inside}) {
    if (order == Order::data_inside && !ordered) continue;
    Choice choice{.grid = grid, .schedule = std::string(kinds().front().name)};
    choice.grid.order = order;
    for (const int microbatch :
         options.microbatches.empty() ? std::vector{model.microbatch} : options.microbatches) {
      choice.microbatch = microbatch;
      if (grid.pipeline == 1) {
        visit(choice);
        continue;
      }
      for (const Kind& kind : kinds()) {
        const auto& asked = options.schedules;
        if (!asked.empty() && std::find(asked.begin(), asked.end(), kind.name) == asked.end()) continue;
        const int last = kind.chunks != 0 ? kind.chunks : options.max_chunks;
        for (int chunks = kind.chunks != 0 ? kind.chunks : 2; chunks <= last; chunks *= 2)
          for (const Balance balance : {Balance::time, Balance::memory})
            visit(Choice{choice.grid, std::string(kind.name), chunks, microbatch, balance});
      }
    }
  }
}

// Times that differ by rounding are equal.
bool is_better(const Plan& a, const Plan& b) {
  const auto key = [](const Plan& plan) {
    return std::pair{static_cast<float>(plan.step_seconds), plan.fullest().total()};
  };
  return key(a) < key(b);
}

bool same_factorization(const Grid& a, const Grid& b) {
  return std::tie(a.data, a.pipeline, a.tensor) == std::tie(b.data, b.pipeline, b.tensor);
}

// The best plans so far.
class Best {
 public:
  explicit Best(const Options& options) : options_(options) {}

  bool may_have(const Choice& choice, double least_seconds) const {
    constexpr double rounding = 1 + 1e-6;
    if (const auto known = same(choice); known != plans_.end())
      if (least_seconds > known->step_seconds * rounding) return false;
    return plans_.size() < options_.plans || least_seconds <= plans_.back().step_seconds * rounding;
  }

  void add(Plan plan) {
    if (const auto known = same(plan.choice); known != plans_.end()) {
      if (!is_better(plan, *known)) return;
      plans_.erase(known);
    }
    plans_.insert(std::upper_bound(plans_.begin(), plans_.end(), plan, is_better), std::move(plan));
    if (plans_.size() > options_.plans) plans_.pop_back();
  }

  std::vector<Plan> take() { return std::move(plans_); }

 private:
  std::vector<Plan>::const_iterator same(const Choice& choice) const {
    return std::find_if(plans_.begin(), plans_.end(), [&](const Plan& plan) {
      return !options_.every_schedule && same_factorization(plan.choice.grid, choice.grid);
    });
  }

  const Options& options_;
  std::vector<Plan> plans_;
};

}  // namespace

const Memory& Plan::fullest() const {
  return *std::max_element(memory.begin(), memory.end(),
                           [](const Memory& a, const Memory& b) { return a.total() < b.total(); });
}

std::vector<std::string_view> schedules() {
  std::vector<std::string_view> names;
  for (const Kind& kind : kinds()) names.push_back(kind.name);
  return names;
}

Plans plan(const Model& model, const Machine& machine, const Options& options) {
  struct Candidate {
    Choice choice;
    double least_seconds;
    Factorization* factorization;
  };
  Predictor predictor(model, machine, options);
  std::vector<Factorization> all = factorizations(machine, options);
  std::vector<Candidate> candidates;
  Plans result{.global_batch = predictor.global_batch()};
  for (Factorization& each : all)
    for_each_choice(each.grid, model, machine, options, [&](const Choice& choice) {
      if (const auto problem = predictor.problem(choice)) {
        if (each.problem.empty()) each.problem = *problem;
        return;
      }
      if (choice.balance == Balance::memory) {
        Choice other = choice;
        other.balance = Balance::time;
        if (predictor.layers_of_stages(choice) == predictor.layers_of_stages(other)) return;
      }
      ++result.choices;
      if (const Memory state = predictor.least_memory(choice); state.total() > machine.memory_bytes)
        return each.does_not_fit(state);
      candidates.push_back({choice, predictor.least_seconds(choice), &each});
    });
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.least_seconds < b.least_seconds; });

  Best best(options);
  for (const Candidate& each : candidates) {
    if (!best.may_have(each.choice, each.least_seconds)) {
      each.factorization->possible = true;
      continue;
    }
    ++result.simulated;
    Plan plan = predictor.predict(each.choice);
    if (const Memory& needed = plan.fullest(); needed.total() > machine.memory_bytes) {
      each.factorization->does_not_fit(needed);
      continue;
    }
    each.factorization->possible = true;
    best.add(std::move(plan));
  }
  result.plans = best.take();
  for (Factorization& each : all) {
    if (each.problem.empty())  // no choice was visited
      each.problem = "no schedule has at most " + std::to_string(options.max_chunks) + " stages on each rank";
    if (!each.possible)
      result.refused.push_back({each.grid, each.memory ? "memory" : each.problem, each.memory});
  }
  return result;
}

Plan predict(const Model& model, const Machine& machine, const Options& options, const Choice& choice) {
  Predictor predictor(model, machine, options);
  if (const auto problem = predictor.problem(choice)) refuse_plan(*problem);
  return predictor.predict(choice);
}

}  // namespace weft::planner
