// The work of bench_weights: a file of 2 GiB, in 16 matrices of float32, is loaded into a module that exists.
#pragma once

#include "bench/harness/bench.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace weft::bench {

struct Work {
  std::string name;
  std::string extension;  // of the file: "safetensors" or "pt"
  bool cold = false;      // the file's pages are dropped from the page cache before each load
};

inline constexpr int matrices = 16;
inline constexpr std::int64_t rows = 4096, columns = 8192;
inline constexpr double bytes = double{matrices} * rows * columns * 4;

using MakeContender = std::optional<Contender> (*)(const Work&);
std::optional<Contender> weft_peer(const Work& work);
// The same without checks of checksums, as torch.load() does it. Only of files that have checksums.
std::optional<Contender> weft_unchecked_peer(const Work& work);
// model.load_state_dict(load_file(...)), or torch.load(..., mmap=True)
std::optional<Contender> torch_peer(const Work& work);

// The file, which is written by the first process that needs it, and removed at the end of the program.
std::filesystem::path file_of(const Work& work);

}  // namespace weft::bench
