// Runs a fuzz target without libFuzzer: its corpus, and mutations of it drawn from a seed.
//
//   fuzz_NAME [--runs=N] [--seed=S] PATH...   runs each file or all files of a folder, then N mutations
//   fuzz_NAME --write-seeds=FOLDER            writes the target's own seeds
//
// If the program dies, the input is in crash-NAME; `fuzz_NAME crash-NAME` runs it again.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>

#include "tests/fuzz/target.h"

// A function of the sanitizers' runtime, if the program is linked with one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace weft::fuzz {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t max_bytes = 8192;

std::string crash_file;
Bytes running;

// Uses only functions that a signal handler may call.
void keep_input() {
  const int file = ::open(crash_file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  [[maybe_unused]] auto written = ::write(file, running.data(), running.size());
  const std::string_view text = "\nthe input is in ";
  written = ::write(STDERR_FILENO, text.data(), text.size());
  written = ::write(STDERR_FILENO, crash_file.data(), crash_file.size());
  written = ::write(STDERR_FILENO, "\n", 1);
}
void on_signal(int signal) {
  keep_input();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(Bytes input) {
  running = std::move(input);
  LLVMFuzzerTestOneInput(running.data(), running.size());
}

// Makes one to four random changes, without knowledge of the format.
Bytes mutate(Bytes bytes, const Bytes& other, std::mt19937_64& random) {
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  const auto at = [&](std::size_t place) { return bytes.begin() + static_cast<std::ptrdiff_t>(place); };
  for (std::size_t changes = 1 + below(4); changes != 0; --changes) {
    if (bytes.empty()) bytes.push_back(static_cast<std::uint8_t>(random()));
    const std::size_t place = below(bytes.size());
    const std::size_t size = std::min(bytes.size() - place, 1 + below(1U << below(8)));
    switch (below(8)) {
      case 0:
        bytes[place] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 1:
        bytes[place] = static_cast<std::uint8_t>(random());
        break;
      case 2: {  // a number that checks are likely to handle wrongly, of any width
        static constexpr std::uint64_t numbers[] = {
            0,      1,        2,          7,          8,
            64,     0x7f,     0x80,       0xff,       0x7fff,
            0xffff, 1U << 20, 0x7fffffff, 0xffffffff, ~std::uint64_t{0}};
        const std::uint64_t number = numbers[below(std::size(numbers))];
        const std::size_t width = std::min<std::size_t>(std::size_t{1} << below(4), bytes.size() - place);
        for (std::size_t i = 0; i < width; ++i)
          bytes[place + i] = static_cast<std::uint8_t>(number >> (8 * i));
        break;
      }
      case 3:
        bytes[place] = static_cast<std::uint8_t>(bytes[place] + (below(2) == 0 ? 1 : -1));
        break;
      case 4:
        bytes.erase(at(place), at(place + size));
        break;
      case 5:
        bytes.insert(at(place), size, static_cast<std::uint8_t>(below(4) == 0 ? random() : bytes[place]));
        break;
      case 6: {  // copies some bytes of the input to another place
        const Bytes copy(at(place), at(place + size));
        bytes.insert(at(below(bytes.size() + 1)), copy.begin(), copy.end());
        break;
      }
      default: {
        if (other.empty()) break;
        const std::size_t from = below(other.size());
        const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
        const std::size_t taken = below(2) == 0 ? std::min(size, other.size() - from) : other.size() - from;
        bytes.insert(at(place), begin, begin + static_cast<std::ptrdiff_t>(taken));
      }
    }
  }
  if (bytes.size() > max_bytes) bytes.resize(max_bytes);
  return bytes;
}

std::vector<std::filesystem::path> files_of(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::filesystem::path> files;
  for (const auto& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // so that the numbers of mutations are reproducible
  return files;
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

void write_seeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const auto& [name, bytes] : seeds()) {
    std::ofstream file(folder / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + (folder / name).string());
  }
}

std::uint64_t number(std::string_view argument) {
  return std::strtoull(argument.substr(argument.find('=') + 1).data(), nullptr, 10);
}

int main(int argc, char** argv) {
  std::uint64_t runs = 0, seed = 1;
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--write-seeds=")) {
      write_seeds(argument.substr(argument.find('=') + 1));
      return 0;
    }
    if (argument.starts_with("--runs=")) {
      runs = number(argument);
    } else if (argument.starts_with("--seed=")) {
      seed = number(argument);
    } else {
      paths.emplace_back(argument);
    }
  }
  crash_file = "crash-" + std::filesystem::path(program_invocation_short_name).string();
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_input);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
    if (signal == SIGABRT || __sanitizer_set_death_callback == nullptr) std::signal(signal, on_signal);

  std::vector<Bytes> corpus;
  for (const auto& path : files_of(paths)) corpus.push_back(read_file(path));
  if (corpus.empty()) throw std::runtime_error("no corpus: name its files or its folder");
  run({});
  for (const Bytes& input : corpus) run(input);
  for (std::uint64_t i = 0; i < runs; ++i) {
    std::mt19937_64 random(seed + i);
    const Bytes& from = corpus[random() % corpus.size()];
    const Bytes& other = corpus[random() % corpus.size()];
    run(mutate(from, other, random));
  }
  std::printf("%zu inputs and %llu mutations of them\n", corpus.size(),
              static_cast<unsigned long long>(runs));
  return 0;
}

}  // namespace
}  // namespace weft::fuzz

int main(int argc, char** argv) {
  try {
    return weft::fuzz::main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
