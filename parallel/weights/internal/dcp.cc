// Checkpoints of torch.distributed.checkpoint (DCP), as FileSystemWriter writes them: a folder with
//   .metadata       a pickle of Metadata: the tensors, their chunks, and where the entries of these are
//   __R_N.distcp    of rank R: entries one after the other, each a file of torch.save()
//
// A chunk is a box of a tensor. All chunks of a tensor are its elements, each once: this, and that all
// entries are in the files, is checked when the folder is opened. An entry is opened and checked when it is
// used.
#include <weft/parallel/weights/internal/assembled_source.h>
#include <weft/parallel/weights/internal/dtypes.h>
#include <weft/parallel/weights/internal/mapped_source.h>
#include <weft/parallel/weights/internal/pickle.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/mutex.h>

#include <c10/util/accumulate.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace weft::weights {
namespace {

using Value = PickledValue;
constexpr auto left_out_note = "weft.left_out";
constexpr std::uint64_t longest_metadata = std::uint64_t{1} << 30;
constexpr std::size_t longest_name = 4096, max_dims_of_chunks = 64, max_fields = 32;
constexpr std::int64_t max_elements = std::int64_t{1} << 55;
constexpr std::uint64_t max_corners = std::uint64_t{1} << 22, max_notes_of_values = std::uint64_t{16} << 20;
// The places of corners fit into 64 bits: a dimension that is split has at least 2 indices and 3 places of
// corners, and 2^55 * 1.5^14 < 2^64.
constexpr std::size_t max_split_dims = 14;

enum class Class : std::int64_t {
  metadata,
  tensor,
  bytes,
  properties,
  chunk,
  index,
  storage_info,
  earlier_properties  // of PyTorch before torch.distributed.checkpoint had its own
};
// The classes and functions that .metadata may name: those of Class in its order, and others, which are not
// used.
constexpr std::string_view classes[] = {
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.serialization._get_layout",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
};

// A part of a file: an entry of a checkpoint.
struct Entry {
  std::shared_ptr<const MappedFile> file;
  std::uint64_t begin = 0, size = 0;
};

struct Chunk {
  Box box;
  Entry entry;
  std::size_t number = 0;  // of the chunk, among all
};

class DcpSource final : public AssembledSource {
 public:
  DcpSource(const std::filesystem::path& folder, OpenOptions options) : options_(options) {
    description_ = folder.string();
  }

  // opened: the entry of the only chunk, if it has been opened. False: the name exists.
  [[nodiscard]] bool add(const std::string& name, TensorForm form, std::vector<Chunk> chunks,
                         std::shared_ptr<const MappedSource> opened = nullptr) {
    const rpc::MutexLock lock(mutex_);
    for (Chunk& chunk : chunks) {
      chunk.number = opened_.size();
      opened_.push_back(opened);
    }
    return tensors_.emplace(name, std::move(form)).second && chunks_.emplace(name, std::move(chunks)).second;
  }
  void set_notes(std::map<std::string, std::string> notes) { notes_ = std::move(notes); }

  at::Tensor view(const std::string& name) const override {
    const TensorForm& its_form = form(name);
    const std::vector<Chunk>& chunks = chunks_.at(name);
    if (chunks.size() == 1 && chunks[0].box.sizes == its_form.sizes)
      return opened(name, chunks[0])->view(name);
    return AssembledSource::view(name);
  }

 protected:
  void fill(const std::string& name, const Box& wanted, const at::Tensor& values) const override {
    for (const Chunk& chunk : chunks_.at(name)) {
      at::Tensor to = values;
      Slice slice;
      for (std::size_t dim = 0; dim < wanted.sizes.size(); ++dim) {
        const std::int64_t in_wanted = wanted.offsets[dim], in_chunk = chunk.box.offsets[dim];
        const std::int64_t begin = std::max(in_wanted, in_chunk),
                           end = std::min(in_wanted + wanted.sizes[dim], in_chunk + chunk.box.sizes[dim]);
        if (begin >= end) {
          to = at::Tensor();
          break;
        }
        const auto number = static_cast<std::int64_t>(dim);
        to = to.narrow(number, begin - in_wanted, end - begin);
        slice.extents.push_back({number, begin - in_chunk, end - in_chunk});
      }
      if (to.defined()) opened(name, chunk)->read(name, to, slice, false);
    }
  }

 private:
  // Opens the entry of a chunk, which must be one tensor of the chunk's sizes.
  std::shared_ptr<const MappedSource> opened(const std::string& name, const Chunk& chunk) const {
    const rpc::MutexLock lock(mutex_);
    std::shared_ptr<const MappedSource>& source = opened_[chunk.number];
    if (source != nullptr) return source;
    const auto part =
        std::make_shared<const MappedFile>(chunk.entry.file, chunk.entry.begin, chunk.entry.size);
    const auto found = open_torch_file(part, options_, name);
    const auto tensor = found->tensors().find(name);
    const TensorForm expected{form(name).dtype, chunk.box.sizes};
    if (tensor == found->tensors().end())
      part->fail("is damaged: there is no tensor, expected '" + name + "'");
    if (tensor->second.dtype != expected.dtype || tensor->second.sizes != expected.sizes)
      part->fail("is damaged: the chunk of '" + name + "' is " + to_text(tensor->second) + ", expected " +
                 to_text(expected));
    return source = found;
  }

  const OpenOptions options_;
  std::map<std::string, std::vector<Chunk>> chunks_;
  mutable rpc::Mutex mutex_;
  mutable std::vector<std::shared_ptr<const MappedSource>> opened_ WEFT_GUARDED_BY(mutex_);  // null: not yet
};

class DcpReader {
 public:
  DcpReader(std::filesystem::path folder, OpenOptions options)
      : folder_(std::move(folder)),
        options_(options),
        file_(folder_ / dcp_metadata),
        source_(std::make_shared<DcpSource>(folder_, options)) {}

  std::shared_ptr<Source> read() {
    if (file_.size() > longest_metadata)
      file_.fail("has " + std::to_string(file_.size()) + " bytes, expected at most " +
                 std::to_string(longest_metadata));
    pickled_ = read_pickle(
        file_.text(0, file_.size()),
        [&](bool unsupported, const std::string& why) {
          if (unsupported) file_.refuse(why);
          file_.fail("is damaged: " + why);
        },
        classes);
    budget_ = 16 * file_.size() + (std::uint64_t{4} << 20);
    const Value& metadata = expect(pickled_.root, Class::metadata, "Metadata");
    read_entries(field(metadata, "storage_data"));
    const Value& state = field(metadata, "state_dict_metadata");
    std::set<std::string_view> names;
    if (state.kind != Value::Kind::dictionary) damaged("state_dict_metadata is not a dict");
    for (std::size_t i = 0; i + 1 < state.items.size(); i += 2) {
      const Value& name = at(state.items[i]);
      expect_name(name);
      spend(64);
      if (!names.insert(name.text).second) damaged("it has '" + name.text.substr(0, 80) + "' twice");
      const Value& value = at(state.items[i + 1]);
      if (is(value, Class::bytes)) {
        read_value(name.text);
      } else {
        read_tensor(name.text, expect(state.items[i + 1], Class::tensor, "TensorStorageMetadata"));
      }
    }
    if (!left_out_.empty()) add_note(left_out_note, left_out_);
    source_->set_notes(std::move(notes_));
    return source_;
  }

 private:
  // --- The values of .metadata ---
  [[noreturn]] void damaged(const std::string& why) const { file_.fail("is damaged: " + why); }
  // Limits the memory for values that the file refers to many times.
  void spend(std::uint64_t bytes) {
    if (bytes > budget_) damaged("it repeats values too often for its size");
    budget_ -= bytes;
  }
  const Value& at(std::uint32_t index) const { return pickled_.values[index]; }
  static bool is(const Value& value, Class type) {
    return value.kind == Value::Kind::record && value.number == static_cast<std::int64_t>(type);
  }
  const Value& expect(std::uint32_t index, Class type, const char* what) const {
    if (!is(at(index), type)) damaged(std::string("there is another value, expected ") + what);
    return at(index);
  }
  // Null: the object does not have the field.
  const Value* find(const Value& object, std::string_view name) const {
    const Value* const state = object.items.size() == 2 ? &at(object.items[1]) : nullptr;
    if (state == nullptr || state->kind != Value::Kind::dictionary || state->items.size() > 2 * max_fields)
      damaged("an object has no fields");
    for (std::size_t i = 0; i + 1 < state->items.size(); i += 2)
      if (at(state->items[i]).text == name) return &at(state->items[i + 1]);
    return nullptr;
  }
  const Value& field(const Value& object, const std::string& name) const {
    const Value* const found = find(object, name);
    if (found == nullptr) damaged("an object lacks the field '" + name + "'");
    return *found;
  }
  void expect_name(const Value& name) const {
    if (name.kind != Value::Kind::text || name.text.size() > longest_name)
      damaged("a name is not a text of at most " + std::to_string(longest_name) + " bytes");
  }
  std::int64_t number(const Value& value, const char* what) const {
    if (value.kind != Value::Kind::integer || value.number < 0)
      damaged(std::string(what) + " is not a number, or negative");
    return value.number;
  }
  std::vector<std::int64_t> numbers(const Value& value, const char* what) const {
    if (value.kind != Value::Kind::sequence || value.items.size() > max_dims_of_chunks)
      damaged(std::string(what) + " are not a tuple of at most " + std::to_string(max_dims_of_chunks) +
              " numbers");
    std::vector<std::int64_t> all;
    for (const std::uint32_t item : value.items) all.push_back(number(at(item), what));
    return all;
  }

  // --- Entries ---
  std::shared_ptr<const MappedFile> file_of(const std::string& name) {
    if (std::filesystem::path(name).filename() != name || name == ".." || name == ".")
      damaged("its file '" + name.substr(0, 80) + "' is not in the folder");
    std::shared_ptr<const MappedFile>& file = files_[name];
    if (file == nullptr) {
      file = std::make_shared<const MappedFile>(folder_ / name);
      expect_torch_save(*file, 0);
    }
    return file;
  }
  // The check of an entry when it is opened would say less.
  static void expect_torch_save(const MappedFile& file, std::uint64_t begin) {
    if (!file.text(begin, file.size() - begin).starts_with("PK\3\4"))
      file.refuse("has no file of torch.save() at byte " + std::to_string(begin) +
                  "; weft does not read checkpoints of SerializationFormat.SAFETENSORS");
  }

  void read_entries(const Value& storage) {
    if (storage.kind != Value::Kind::dictionary) damaged("storage_data is not a dict");
    std::vector<std::tuple<const MappedFile*, std::uint64_t, std::uint64_t>> ranges;
    for (std::size_t i = 0; i + 1 < storage.items.size(); i += 2) {
      const Value& index = expect(storage.items[i], Class::index, "MetadataIndex");
      const Value& info = expect(storage.items[i + 1], Class::storage_info,
                                 "_StorageInfo of torch.distributed.checkpoint.filesystem");
      const Value& name = field(index, "fqn");
      const Value& path = field(info, "relative_path");
      expect_name(name), expect_name(path);
      if (const Value* const extensions = find(info, "transform_descriptors");
          extensions != nullptr && !extensions->items.empty())
        file_.refuse("its entries were written with the extension '" +
                     at(extensions->items[0]).text.substr(0, 80) + "', which weft does not read");
      const auto begin = static_cast<std::uint64_t>(number(field(info, "offset"), "the offset of an entry"));
      const auto size = static_cast<std::uint64_t>(number(field(info, "length"), "the length of an entry"));
      const auto file = file_of(path.text);
      if (begin > file->size() || size > file->size() - begin)
        damaged("the entry of '" + name.text.substr(0, 80) + "', " + std::to_string(size) +
                " bytes from byte " + std::to_string(begin) + " on, is outside of " + file->description() +
                ", which has " + std::to_string(file->size()) + " bytes");
      ranges.emplace_back(file.get(), begin, begin + size);
      Key key{name.text, {}};
      if (const Value* const offset = find(index, "offset"); offset != nullptr && is_set(*offset))
        key.second = numbers(*offset, "the offsets of an entry");
      spend(sizeof(Key) + 8 * (key.second ? key.second->size() : 0));
      if (!entries_.emplace(std::move(key), Entry{file, begin, size}).second)
        damaged("'" + name.text.substr(0, 80) + "' has two entries of one chunk");
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      const auto& [file, begin, end] = ranges[i];
      const auto& [file_before, begin_before, end_before] = ranges[i - 1];
      if (file != file_before || begin >= end_before) continue;
      expect_torch_save(*file, begin);
      damaged("two entries overlap at byte " + std::to_string(begin) + " of " + file->description());
    }
  }
  static bool is_set(const Value& value) { return value.kind != Value::Kind::plain; }  // None is plain

  using Key = std::pair<std::string_view, std::optional<std::vector<std::int64_t>>>;  // name, offsets
  const Entry& entry_of(const Key& key) const {
    const auto found = entries_.find(key);
    if (found == entries_.end())
      damaged("the entry of a chunk of '" + std::string(key.first.substr(0, 80)) + "' is missing");
    return found->second;
  }

  void add_note(const std::string& name, const std::string& text) {
    if (name.size() + text.size() + 256 > notes_left_) return;
    notes_left_ -= name.size() + text.size() + 256;
    notes_.emplace(name, text);
  }

  // A value that is no tensor. Its numbers and texts become notes. A value that has anything else than what
  // read_pickle() knows is left out, and the note left_out says so.
  void read_value(const std::string& name) {
    const Entry& entry = entry_of({name, std::nullopt});
    const auto part = std::make_shared<const MappedFile>(entry.file, entry.begin, entry.size);
    std::shared_ptr<const MappedSource> value;
    try {
      value = open_torch_file(part, options_, name);
    } catch (const rpc::Error& error) {
      if (error.kind() != rpc::ErrorKind::unsupported) throw;
      left_out_ += (left_out_.empty() ? "" : ", ") + name;
      return;
    }
    for (const auto& [path, text] : value->notes()) add_note(path, text);
    for (const auto& [path, form] : value->tensors()) {  // for example of a tuple
      if (form.bytes() > entry.size)
        part->refuse("'" + path + "' has fewer elements in memory than in its shape");
      Chunk whole{{std::vector<std::int64_t>(form.sizes.size()), form.sizes}, entry};
      add(path, {form.dtype, form.sizes}, {std::move(whole)}, value);
    }
  }

  // --- Tensors ---
  void add(const std::string& name, TensorForm form, std::vector<Chunk> chunks,
           std::shared_ptr<const MappedSource> opened = nullptr) {
    if (!source_->add(name, std::move(form), std::move(chunks), std::move(opened)))
      damaged("it has two tensors whose name is '" + name.substr(0, 80) + "'");
  }

  void read_tensor(const std::string& name, const Value& about) {
    spend(2 * name.size() + 256);
    TensorForm form;
    const Value& properties = field(about, "properties");
    if ((!is(properties, Class::properties) && !is(properties, Class::earlier_properties)) ||
        properties.items.size() != 2 || at(properties.items[1]).items.empty())
      damaged("'" + name.substr(0, 80) + "' has no properties");
    const Value& type = at(at(properties.items[1]).items[0]);
    const Dtype* const dtype = type.kind == Value::Kind::global ? dtype_of_torch(type.text) : nullptr;
    if (dtype == nullptr) damaged("'" + name.substr(0, 80) + "' has no dtype");
    form.dtype = dtype->type;
    form.sizes = numbers(field(about, "size"), "the sizes of a tensor");
    std::int64_t elements = 1;  // without extents of 0
    for (const std::int64_t size : form.sizes)
      if (__builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements) ||
          elements > max_elements)
        damaged("'" + name.substr(0, 80) + "' has too many elements: " + to_text(form));

    const Value& list = field(about, "chunks");
    if (list.kind != Value::Kind::sequence) damaged("the chunks of a tensor are not a list");
    std::vector<Chunk> chunks;
    for (const std::uint32_t item : list.items) {
      spend(sizeof(Chunk) + 32 * form.sizes.size() + 64);
      const Value& chunk = expect(item, Class::chunk, "ChunkStorageMetadata");
      Box box{numbers(field(chunk, "offsets"), "the offsets of a chunk"),
              numbers(field(chunk, "sizes"), "the sizes of a chunk")};
      bool fits = box.offsets.size() == form.sizes.size() && box.sizes.size() == form.sizes.size();
      for (std::size_t dim = 0; fits && dim < form.sizes.size(); ++dim)
        fits = box.sizes[dim] <= form.sizes[dim] && box.offsets[dim] <= form.sizes[dim] - box.sizes[dim];
      if (!fits) damaged("'" + name.substr(0, 80) + "' of " + to_text(form) + " has a chunk outside of it");
      const Entry& entry = entry_of({name, box.offsets});
      if (TensorForm{form.dtype, box.sizes}.bytes() > entry.size)
        damaged("a chunk of '" + name.substr(0, 80) + "', " + to_text({form.dtype, box.sizes}) +
                ", is in an entry of " + std::to_string(entry.size) + " bytes");
      chunks.push_back({std::move(box), entry});
    }
    expect_each_element_once(name, form, chunks);
    add(name, std::move(form), std::move(chunks));
  }

  // Chunks that are in a tensor contain each of its elements once if the sum of the chunks' signed corners
  // is that of the tensor: a box has the sign + at its first corner, and the other sign at the other end of
  // an edge. (A function of indices with finitely many values that are not 0 follows from its differences.)
  void expect_each_element_once(const std::string& name, const TensorForm& form,
                                const std::vector<Chunk>& chunks) {
    std::int64_t missing = form.numel();
    for (const Chunk& chunk : chunks)
      missing -= std::min(missing + 1, c10::multiply_integers(chunk.box.sizes));
    const std::string what = "'" + name.substr(0, 80) + "' of " + to_text(form);
    if (missing > 0) damaged(what + " lacks " + std::to_string(missing) + " elements");
    if (missing < 0) damaged(what + " has chunks that overlap");
    if (form.numel() == 0) return;

    std::vector<std::size_t> split;  // dimensions
    for (std::size_t dim = 0; dim < form.sizes.size(); ++dim)
      if (std::any_of(chunks.begin(), chunks.end(),
                      [&](const Chunk& chunk) { return chunk.box.sizes[dim] != form.sizes[dim]; }))
        split.push_back(dim);
    if (split.size() > max_split_dims || (chunks.size() + 1) << split.size() > max_corners)
      file_.refuse(what + " has " + std::to_string(chunks.size()) + " chunks, which are split in " +
                   std::to_string(split.size()) + " dimensions");
    spend((chunks.size() + 1) << split.size());
    std::vector<std::pair<std::uint64_t, int>> corners;  // the place, the sign
    const auto add_corners = [&](const std::vector<std::int64_t>& offsets,
                                 const std::vector<std::int64_t>& sizes, int sign) {
      for (std::uint64_t ends = 0; ends < std::uint64_t{1} << split.size(); ++ends) {
        std::uint64_t place = 0;
        int sign_here = sign;
        for (std::size_t i = 0; i < split.size(); ++i) {
          const bool is_end = (ends >> i & 1) != 0;
          const std::size_t dim = split[i];
          place = place * static_cast<std::uint64_t>(form.sizes[dim] + 1) +
                  static_cast<std::uint64_t>(offsets[dim] + (is_end ? sizes[dim] : 0));
          if (is_end) sign_here = -sign_here;
        }
        corners.emplace_back(place, sign_here);
      }
    };
    for (const Chunk& chunk : chunks)
      if (c10::multiply_integers(chunk.box.sizes) != 0) add_corners(chunk.box.offsets, chunk.box.sizes, 1);
    add_corners(std::vector<std::int64_t>(form.sizes.size()), form.sizes, -1);
    std::sort(corners.begin(), corners.end());
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < corners.size(); ++i) {
      sum += corners[i].second;
      if (i + 1 != corners.size() && corners[i + 1].first == corners[i].first) continue;
      if (sum != 0) damaged(what + " has chunks that overlap, and lacks elements");
    }
  }

  const std::filesystem::path folder_;
  const OpenOptions options_;
  const MappedFile file_;  // .metadata
  const std::shared_ptr<DcpSource> source_;
  Pickled pickled_;
  std::uint64_t budget_ = 0, notes_left_ = max_notes_of_values;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
  std::map<Key, Entry> entries_;
  std::map<std::string, std::string> notes_;
  std::string left_out_;  // names of values
};

}  // namespace

std::shared_ptr<Source> open_dcp(const std::filesystem::path& folder, OpenOptions options) {
  return DcpReader(folder, options).read();
}

}  // namespace weft::weights
