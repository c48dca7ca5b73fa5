// Files of torch.save() and checkpoints of torch.distributed.checkpoint, made by hand so that tests can make
// wrong ones.
#pragma once

#include <weft/parallel/weights/internal/zip.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace weft::weights::test_files {

using Records = std::vector<std::pair<std::string, std::string>>;

inline std::string torch_zip(const Records& records) {
  ZipLayout layout;
  std::vector<std::uint64_t> begins;
  for (const auto& [name, bytes] : records) begins.push_back(layout.add(name, bytes.size()));
  std::string file(layout.bytes(), '\0');
  for (std::size_t i = 0; i < records.size(); ++i)
    std::memcpy(file.data() + begins[i], records[i].second.data(), records[i].second.size());
  layout.complete(reinterpret_cast<std::byte*>(file.data()));
  return file;
}

// The pickle of a tensor of float32 with these pickles of its storage's size, offset, sizes and strides.
inline std::string tensor_pickle(const std::string& numel, const std::string& offset,
                                 const std::string& sizes, const std::string& strides) {
  return std::string("\x80\2ctorch._utils\n_rebuild_tensor_v2\n((U\7storagectorch\nFloatStorage\nU\1") +
         "0U\3cpu" + numel + "tQ" + offset + sizes + strides + "\x89}tR.";
}

// --- Parts of pickles ---
inline std::string pickled(std::int64_t number) {
  return "\x8a\x08" + std::string(reinterpret_cast<const char*>(&number), sizeof number);
}
inline std::string pickled(const std::string& text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  return "X" + std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}
inline std::string pickled(const std::vector<std::int64_t>& numbers) {
  std::string tuple = "(";
  for (const std::int64_t number : numbers) tuple += pickled(number);
  return tuple + "t";
}
inline std::string pickled_size(const std::vector<std::int64_t>& numbers) {
  return "ctorch\nSize\n" + pickled(numbers) + "\x85R";
}
inline std::string pickled_object(const std::string& type, const Records& fields) {
  std::string object = "ctorch.distributed.checkpoint." + type + "\n)\x81}(";
  for (const auto& [name, value] : fields) object += pickled(name) + value;
  return object + "ub";
}

// A checkpoint with one tensor, of float32.
struct DcpFolder {
  struct Chunk {
    std::vector<std::int64_t> offsets, sizes;
    std::string file = "__0_0.distcp";
    std::int64_t begin = 0, size = 0;
    Records more = {};  // fields of _StorageInfo
  };

  std::string dtype = "torch\nfloat32";
  std::string properties = "checkpoint.metadata";  // the module of TensorProperties
  std::vector<std::int64_t> sizes;
  std::vector<Chunk> chunks;
  std::string entries;  // __0_0.distcp

  explicit DcpFolder(std::vector<std::int64_t> whole) : sizes(std::move(whole)) {}

  // Adds a chunk whose elements are `first`, `first` + 1, ...
  DcpFolder& add(const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& of_chunk,
                 float first = 0) {
    std::vector<std::int64_t> strides(of_chunk.size());
    std::int64_t count = 1;
    for (std::size_t dim = of_chunk.size(); dim-- > 0; count *= of_chunk[dim]) strides[dim] = count;
    std::string bytes;
    for (std::int64_t i = 0; i < count; ++i, ++first)
      bytes.append(reinterpret_cast<const char*>(&first), sizeof first);
    const std::string entry =
        torch_zip({{"a/data.pkl", tensor_pickle(pickled(count), "K" + std::string(1, '\0'), pickled(of_chunk),
                                                pickled(strides))},
                   {"a/data/0", bytes}});
    chunks.push_back({offsets, of_chunk, "__0_0.distcp", static_cast<std::int64_t>(entries.size()),
                      static_cast<std::int64_t>(entry.size())});
    entries += entry + "x";  // so that the next one is not aligned
    return *this;
  }

  std::string metadata() const {
    std::string list = "](", storage = "}(";
    for (const Chunk& chunk : chunks) {
      list += pickled_object("metadata\nChunkStorageMetadata", {{"offsets", pickled_size(chunk.offsets)},
                                                                {"sizes", pickled_size(chunk.sizes)}});
      Records info{{"relative_path", pickled(chunk.file)},
                   {"offset", pickled(chunk.begin)},
                   {"length", pickled(chunk.size)}};
      info.insert(info.end(), chunk.more.begin(), chunk.more.end());
      storage += pickled_object("metadata\nMetadataIndex", {{"fqn", pickled(std::string("a"))},
                                                            {"offset", pickled_size(chunk.offsets)}}) +
                 pickled_object("filesystem\n_StorageInfo", info);
    }
    const std::string with_dtype =
        "ctorch.distributed." + properties + "\nTensorProperties\n)\x81(c" + dtype + "\ntb";
    const std::string tensor =
        pickled_object("metadata\nTensorStorageMetadata",
                       {{"properties", with_dtype}, {"size", pickled_size(sizes)}, {"chunks", list + "e"}});
    return "\x80\2" +
           pickled_object("metadata\nMetadata",
                          {{"state_dict_metadata", "}" + pickled(std::string("a")) + tensor + "s"},
                           {"storage_data", storage + "u"}}) +
           ".";
  }
};

}  // namespace weft::weights::test_files
