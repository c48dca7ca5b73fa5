#include <weft/parallel/weights/internal/file_sink.h>
#include <weft/parallel/weights/internal/safetensors_header.h>
#include <weft/rpc/core/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>

namespace weft::weights {
namespace {

namespace fs = std::filesystem;
using NamedForms = std::vector<std::pair<std::string, TensorForm>>;

// Makes the forms those of safetensors, and names in the notes the tensors that stand for others.
NamedForms in_c_order(TensorForms forms, std::map<std::string, std::string>& notes,
                      std::map<std::string, std::string>& same) {
  // A note whose text is the name of a tensor would make another tensor of it.
  std::erase_if(notes,
                [&](const auto& note) { return forms.contains(note.second) && !forms.contains(note.first); });
  NamedForms all;
  for (auto& [name, form] : without_lone_storages(std::move(forms), same))
    all.emplace_back(name, TensorForm{form.dtype, form.sizes});
  for (const auto& [name, kept] : same) notes[name] = kept;
  notes.emplace("format", "pt");  // transformers refuses files whose notes lack it
  // The largest elements first, so that all are aligned.
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return c10::elementSize(a.second.dtype) > c10::elementSize(b.second.dtype);
  });
  return all;
}

void add_file(SinkLayout& layout, const fs::path& path, const NamedForms& forms,
              const std::map<std::string, std::string>& notes) {
  const std::string text = safetensors_header_text(forms, notes);
  std::uint64_t at = sizeof(std::uint64_t) + text.size();
  for (const auto& [name, form] : forms) {
    layout.places.emplace(name, SinkLayout::Place{layout.files.size(), at, form});
    at += form.bytes();
  }
  layout.files.push_back({path, at, [text](std::byte* file) {
                            const std::uint64_t length = text.size();
                            std::memcpy(file, &length, sizeof length);
                            std::memcpy(file + sizeof length, text.data(), text.size());
                          }});
}

// The shards of an earlier index, which may name any file: only files of tensors in its folder. None if there
// is no index, or it is damaged.
std::set<std::string> shards_of(const fs::path& index) {
  std::set<std::string> shards;
  const nlohmann::json json = nlohmann::json::parse(std::ifstream(index), nullptr, false);
  if (json.is_object() && json.contains("weight_map") && json["weight_map"].is_object())
    for (const auto& shard : json["weight_map"])
      if (const auto name = shard.is_string() ? fs::path(shard.get<std::string>()) : fs::path();
          name.extension() == ".safetensors" && name.filename() == name)
        shards.insert(name.string());
  return shards;
}

std::string shard_name(const std::string& stem, std::size_t index, std::size_t count) {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu.safetensors", index + 1, count);
  return stem + numbers;
}

}  // namespace

SinkLayout safetensors_layout(const fs::path& path, TensorForms forms,
                              std::map<std::string, std::string> notes) {
  SinkLayout layout;
  const NamedForms all = in_c_order(std::move(forms), notes, layout.same);
  add_file(layout, path, all, notes);
  return layout;
}

SinkLayout shards_layout(const fs::path& folder, TensorForms forms, std::map<std::string, std::string> notes,
                         std::uint64_t max_shard_bytes) {
  SinkLayout layout;
  std::vector<NamedForms> shards(1);
  std::uint64_t in_shard = 0, total = 0;
  for (auto& each : in_c_order(std::move(forms), notes, layout.same)) {
    const std::uint64_t bytes = each.second.bytes();
    if (!shards.back().empty() && in_shard + bytes > max_shard_bytes) shards.emplace_back(), in_shard = 0;
    in_shard += bytes, total += bytes;
    shards.back().push_back(std::move(each));
  }
  // Shards of an earlier model are kept until the new index is complete, so the new ones have other names.
  std::string stem = "model";
  const auto exists = [&] {
    std::error_code ignored;  // a folder that cannot be examined cannot be written
    for (std::size_t i = 0; i < shards.size(); ++i)
      if (fs::exists(folder / shard_name(stem, i, shards.size()), ignored)) return true;
    return false;
  };
  for (int version = 2; exists(); ++version) stem = "model-v" + std::to_string(version);
  nlohmann::json index = {{"metadata", notes}, {"weight_map", nlohmann::json::object()}};
  index["metadata"]["total_size"] = total;
  std::set<std::string> names;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(stem, i, shards.size());
    names.insert(name);
    for (const auto& [tensor, form] : shards[i]) index["weight_map"][tensor] = name;
    add_file(layout, folder / name, shards[i], notes);
  }
  layout.publish = [folder, names, text = index.dump(2)] {
    const fs::path path = folder / "model.safetensors.index.json";
    std::set<fs::path> earlier{folder / "model.safetensors"};
    for (const std::string& shard : shards_of(path))
      if (!names.contains(shard)) earlier.insert(folder / shard);
    write_whole(path, [&](CheckedFile& file) { file.write(text.data(), text.size()); });
    std::error_code ignored;
    for (const fs::path& each : earlier) fs::remove(each, ignored);
  };
  return layout;
}

}  // namespace weft::weights
