// Folders of torch.distributed.checkpoint: the pickle of .metadata, and the file of entries.
//
// The first byte says whether checksums are checked (1), and whether the rest is .metadata of a fixed file of
// entries (2), or the file of entries of a fixed .metadata (4). Otherwise the next two bytes are the size of
// .metadata, which is followed by the file of entries.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/weights_file.h"
#include "tests/parallel/weights/dcp_folder.h"

namespace weft::fuzz {
namespace {

using weights::test_files::DcpFolder;

DcpFolder columns() {
  DcpFolder folder({2, 3});
  return folder.add({0, 0}, {2, 1}, 1).add({0, 1}, {2, 2}, 3);
}

// A folder in memory, which is removed when the program ends.
class DcpMemory {
 public:
  DcpMemory() {
    if (::mkdtemp(path_.data()) == nullptr) fail("the folder cannot be made");
  }
  ~DcpMemory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  void read(std::string_view metadata, std::string_view entries, bool checksums) const {
    put(".metadata", metadata);
    put("__0_0.distcp", entries);
    read_all(path_, checksums);
  }

 private:
  void put(const std::string& name, std::string_view bytes) const {
    std::ofstream file(path_ + "/" + name, std::ios::binary);
    if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())))
      fail("the file cannot be written");
  }

  std::string path_ = "/dev/shm/weft-fuzz-XXXXXX";
};

std::vector<std::uint8_t> seed(std::uint8_t how, std::string_view bytes) {
  return input({how}, std::as_bytes(std::span(bytes)));
}

std::string both(const DcpFolder& folder) {
  const std::string metadata = folder.metadata();
  const auto size = static_cast<std::uint16_t>(metadata.size());
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + metadata + folder.entries;
}

}  // namespace

Corpus seeds() {
  DcpFolder rows({4}), one({}), empty({0, 2}), overlapping({3});
  rows.add({0}, {1}, 1).add({1}, {3}, 2);
  one.add({}, {}, 7);
  empty.add({0, 0}, {0, 2});
  overlapping.add({0}, {2}, 1).add({1}, {1}, 2);
  DcpFolder extension = rows;
  extension.chunks[0].more = {{"transform_descriptors", "](U\4zstde"}};
  return {{"columns", seed(0, both(columns()))},
          {"rows", seed(1, both(rows))},
          {"one", seed(1, both(one))},
          {"empty", seed(0, both(empty))},
          {"overlapping", seed(0, both(overlapping))},
          {"extension", seed(0, both(extension))},
          {"metadata", seed(2, columns().metadata())},
          {"entries", seed(4, columns().entries)}};
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const weft::fuzz::DcpMemory folder;
  static const auto fixed = weft::fuzz::columns();
  static const std::string metadata = fixed.metadata();
  if (size == 0) return 0;
  const bool checksums = (data[0] & 1) != 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 2) != 0) {
    folder.read(rest, fixed.entries, checksums);
  } else if ((data[0] & 4) != 0) {
    folder.read(metadata, rest, checksums);
  } else if (rest.size() >= 2) {
    std::uint16_t length;
    std::memcpy(&length, rest.data(), sizeof length);
    const std::string_view files = rest.substr(sizeof length);
    const std::size_t first = std::min<std::size_t>(length, files.size());
    folder.read(files.substr(0, first), files.substr(first), checksums);
  }
  return 0;
}
