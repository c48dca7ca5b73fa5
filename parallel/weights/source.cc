#include <weft/parallel/weights/source.h>

#include <weft/parallel/weights/internal/mapped_source.h>
#include <weft/parallel/weights/internal/safetensors_header.h>
#include <weft/rpc/core/error.h>

#include <fcntl.h>

#include <nlohmann/json.hpp>

namespace weft::weights {

namespace fs = std::filesystem;

Source::~Source() = default;

const TensorForm& Source::form(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw rpc::Error(rpc::ErrorKind::not_found, description_ + ": has no tensor '" + name + "'");
  return found->second;
}

at::Tensor Source::part_to_read(const std::string& name, const at::Tensor& to, const Slice& slice,
                                bool convert, const at::Tensor& whole) const {
  const TensorForm& its_form = form(name);
  const std::string what = description_ + ": '" + name + "'";
  const auto refuse = [&](const std::string& why) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, what + why);
  };
  if (!to.defined()) refuse(" cannot be read into a tensor that is not defined");
  const std::string target = ", the tensor to fill is " + to_text({to.scalar_type(), to.sizes().vec()});
  if (to.scalar_type() != its_form.dtype && !convert) refuse(" is " + to_text(its_form) + target);
  at::Tensor part = slice.of(whole, what);
  if (part.sizes() != to.sizes())
    refuse(" has a slice of " + to_text({its_form.dtype, part.sizes().vec()}) + target);
  return part;
}

namespace {

// A name whose note is the name of a tensor is that tensor under another name (safetensors' save_model()).
// Most files have the note "format": "pt", which says nothing about a tensor 'pt'.
void set_notes(MappedSource& source, std::map<std::string, std::string> notes) {
  std::vector<std::pair<std::string, std::string>> same;
  for (const auto& [name, kept] : notes)
    if (source.tensors().contains(kept) && !source.tensors().contains(name) &&
        !(name == "format" && kept == "pt"))
      same.emplace_back(name, kept);
  for (const auto& [name, kept] : same) source.share(name, kept);
  source.set_notes(std::move(notes));
}

}  // namespace

std::shared_ptr<MappedSource> open_safetensors(const fs::path& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  SafetensorsHeader header = read_safetensors_header(file->file());
  if (header.elements_at + header.elements_bytes != file->size())
    file->file().fail("has changed its size while it was opened");
  auto source = std::make_shared<MappedSource>(path.string());
  for (auto& [name, form] : header.forms)
    (void)source->add(name, std::move(form), {file, header.elements_at + header.places.at(name)});
  set_notes(*source, std::move(header.notes));
  return source;
}

namespace {

constexpr auto index_name = "model.safetensors.index.json", whole_name = "model.safetensors";
constexpr std::uint64_t longest_index = 100'000'000;

// The tensors of all shards, which are in the folder of the index.
std::shared_ptr<Source> open_index(const fs::path& path) {
  const CheckedFile file(path, O_RDONLY);
  const std::uint64_t size = file.size();
  if (size > longest_index)
    file.fail("has " + std::to_string(size) + " bytes, expected at most " + std::to_string(longest_index));
  std::string text(size, '\0');
  file.read_at(0, text.data(), size);
  const nlohmann::json index = parse_checked_json(file, text);
  auto source = std::make_shared<MappedSource>(path.string());
  std::map<std::string, std::shared_ptr<MappedSource>> shards;
  try {
    for (const auto& [name, value] : index.at("weight_map").items()) {
      const auto shard = value.get<std::string>();
      if (fs::path(shard).filename() != shard || shard == ".." || shard == ".")
        file.fail("is damaged: its shard '" + shard + "' is not in the folder of the index");
      std::shared_ptr<MappedSource>& opened = shards[shard];
      if (opened == nullptr) opened = open_safetensors(path.parent_path() / shard);
      if (!opened->tensors().contains(name))
        file.fail("names '" + name + "' in " + shard + ", which lacks it");
      TensorForm form = opened->form(name);
      form.storage.clear();  // a name in one shard may be another tensor in the next
      (void)source->add(name, std::move(form), opened->place(name));
    }
  } catch (const nlohmann::json::exception& error) {
    file.fail(std::string("is damaged: it is not an index of shards: ") + error.what());
  }
  std::map<std::string, std::string> notes;
  for (const auto& [name, shard] : shards) notes.insert(shard->notes().begin(), shard->notes().end());
  set_notes(*source, std::move(notes));
  return source;
}

}  // namespace

std::shared_ptr<Source> open_source(const fs::path& path, OpenOptions options) {
  std::error_code ignored;  // a path that cannot be examined cannot be opened
  if (fs::is_directory(path, ignored)) {
    for (const char* name : {whole_name, index_name})
      if (fs::exists(path / name, ignored)) return open_source(path / name, options);
    if (fs::exists(path / dcp_metadata, ignored)) return open_dcp(path, options);
    if (fs::exists(path / "__0.metadata", ignored))
      throw rpc::Error(
          rpc::ErrorKind::unsupported,
          path.string() + ": has a .metadata for each rank, expected one; save with use_collectives=True");
    if (fs::exists(path / "manifest.safetensors", ignored))
      throw rpc::Error(rpc::ErrorKind::unsupported,
                       path.string() + ": is a checkpoint of weft, which sharded::open_checkpoint() reads");
    throw rpc::Error(rpc::ErrorKind::failed_precondition, path.string() + ": has neither " + whole_name +
                                                              " nor " + index_name + " nor " + dcp_metadata);
  }
  if (path.filename().string().ends_with(".json")) return open_index(path);
  char first[4] = {};
  const CheckedFile file(path, O_RDONLY);
  if (file.size() >= sizeof first) file.read_at(0, first, sizeof first);
  const std::string_view magic(first, sizeof first);
  if (magic == "PK\3\4") return open_torch_file(std::make_shared<const MappedFile>(path), options);
  if (magic == "\x80\2\x8a\n")
    throw rpc::Error(rpc::ErrorKind::unsupported,
                     path.string() +
                         ": is not a zip file: torch.save() of PyTorch before 1.6 wrote it, or with "
                         "_use_new_zipfile_serialization=False; load and save it again with PyTorch");
  return open_safetensors(path);
}

}  // namespace weft::weights
