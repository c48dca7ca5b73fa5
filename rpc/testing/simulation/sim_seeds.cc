#include <weft/rpc/testing/simulation/sim_seeds.h>

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <optional>
#include <string_view>

// Of the sanitizer's runtime, if there is one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace weft::test {
namespace {

constexpr std::size_t max_failures = 3;
constexpr std::uint64_t long_run = 20'000;  // number of seeds from which progress is printed

std::optional<std::uint64_t> number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

struct Failure {
  std::string what, trace;
};

// Prints the current seed if the program dies, from a signal or a sanitizer's report.
std::atomic<std::uint64_t> running_seed{0};

void print_seed() {
  const std::string_view text = "\nthe simulation was at WEFT_SIM_SEED=";
  char digits[21];
  char* first = digits + sizeof digits;
  *--first = '\n';
  std::uint64_t rest = running_seed;
  do *--first = static_cast<char>('0' + rest % 10);
  while ((rest /= 10) != 0);
  [[maybe_unused]] auto written = ::write(STDERR_FILENO, text.data(), text.size());
  written = ::write(STDERR_FILENO, first, static_cast<std::size_t>(digits + sizeof digits - first));
}

class SeedInDeath {
 public:
  SeedInDeath() {
    if (__sanitizer_set_death_callback != nullptr) {
      __sanitizer_set_death_callback(print_seed);
      return;
    }
    struct sigaction action{};
    action.sa_handler = [](int signal) {
      print_seed();
      ::raise(signal);  // now with the previous action
    };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    for (std::size_t i = 0; i < std::size(signals); ++i) ::sigaction(signals[i], &action, &before_[i]);
  }
  ~SeedInDeath() {
    if (__sanitizer_set_death_callback != nullptr) {
      __sanitizer_set_death_callback(nullptr);
      return;
    }
    for (std::size_t i = 0; i < std::size(signals); ++i) ::sigaction(signals[i], &before_[i], nullptr);
  }
  SeedInDeath(const SeedInDeath&) = delete;
  SeedInDeath& operator=(const SeedInDeath&) = delete;

 private:
  static constexpr int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  struct sigaction before_[std::size(signals)];
};

std::optional<Failure> run(std::uint64_t seed, const SimOptions& options,
                           const std::function<void(SimWorld&)>& body, std::uint64_t& steps) {
  SimWorld world(seed, options);
  std::string what;
  try {
    body(world);
  } catch (const std::exception& error) {
    what = std::string("  thrown: ") + error.what() + "\n";
  }
  for (const std::string& violation : world.violations()) what += "  " + violation + "\n";
  steps += world.steps();
  if (what.empty()) return std::nullopt;
  return Failure{std::move(what), world.trace().tail()};
}

}  // namespace

SimReport for_each_seed(const SimSeeds& seeds, const std::function<void(SimWorld&)>& body) {
  SimOptions options = seeds.options;
  const auto only = number_from_environment("WEFT_SIM_SEED");
  const std::uint64_t first = only.value_or(seeds.first);
  const std::uint64_t count = only ? 1 : number_from_environment("WEFT_SIM_SEEDS").value_or(seeds.count);
  options.live_trace = only && number_from_environment("WEFT_SIM_TRACE").value_or(0) != 0;

  SimReport report;
  const SeedInDeath in_death;
  for (std::uint64_t seed = first; seed != first + count && report.failed.size() < max_failures; ++seed) {
    ++report.seeds;
    running_seed = seed;
    if (count >= long_run && report.seeds % (count / 20) == 0)
      std::fprintf(stderr, "%llu of %llu seeds\n", static_cast<unsigned long long>(report.seeds),
                   static_cast<unsigned long long>(count));
    const auto failure = run(seed, options, body, report.steps);
    if (!failure) continue;
    report.failed.push_back(seed);
    std::string text = "seed " + std::to_string(seed) + " failed:\n" + failure->what;
    if (report.failed.size() == 1 && !options.live_trace) text += failure->trace;
    text += "replay it with: WEFT_SIM_SEED=" + std::to_string(seed) + " " + program_invocation_name;
    if (!seeds.test.empty()) text += " --gtest_filter=" + seeds.test;
    report.text += text + "\n";
    if (seeds.print) std::fprintf(stderr, "%s\n", text.c_str());
  }
  return report;
}

}  // namespace weft::test
