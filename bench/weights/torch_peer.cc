// Python's load_state_dict(): torch_peer.py.
#include "bench/harness/torch_python.h"
#include "bench/weights/work.h"

#include <unistd.h>

namespace weft::bench {

std::filesystem::path file_of(const Work& work) {
  // The process that measures is a child of the program, and exits without destructors.
  struct Folder {
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("weft-bench-weights-" + std::to_string(::getpid()));
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder folder;
  return folder.path / ("model." + work.extension);
}

std::optional<Contender> torch_peer(const Work& work) {
  return Contender{work.extension == "pt" ? "torch-load" : "safetensors", {}, [work](const Setting& setting) {
                     return measure_torch_ranks(
                         1, setting, "weights/torch_peer.py",
                         {file_of(work).string(), work.cold ? "cold" : "warm", std::to_string(matrices),
                          std::to_string(rows), std::to_string(columns)});
                   }};
}

}  // namespace weft::bench
