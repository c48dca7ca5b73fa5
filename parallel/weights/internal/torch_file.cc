// Files of torch.save(): a zip file with the records
//   NAME/data.pkl     a pickle, in which storages are named by keys
//   NAME/data/KEY     the bytes of a storage
//   NAME/byteorder    "little"
//   NAME/version
#include <weft/parallel/weights/internal/crc32.h>
#include <weft/parallel/weights/internal/dtypes.h>
#include <weft/parallel/weights/internal/file_sink.h>
#include <weft/parallel/weights/internal/pickle.h>
#include <weft/parallel/weights/internal/zip.h>
#include <weft/rpc/core/error.h>

#include <nlohmann/json.hpp>

#include <cstring>
#include <functional>

namespace weft::weights {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t longest_pickle = std::uint64_t{64} << 20;
constexpr std::uint64_t max_notes = std::uint64_t{16} << 20;  // bytes; further notes are left out
constexpr std::size_t deepest_value = 100, longest_path = 4096;

// The last element of a tensor and how many it has; -1 if that is more than any memory.
struct Reach {
  std::int64_t last = 0, numel = 1;
};
Reach reach_of(std::int64_t offset, const std::vector<std::int64_t>& sizes,
               const std::vector<std::int64_t>& strides) {
  Reach reach{offset, 1};
  std::int64_t product = 1;  // without extents of 0
  bool fits = offset >= 0 && sizes.size() == strides.size();
  for (std::size_t dim = 0; fits && dim < sizes.size(); ++dim) {
    std::int64_t distance = 0;
    fits = sizes[dim] >= 0 && strides[dim] >= 0 &&
           !__builtin_mul_overflow(product, std::max<std::int64_t>(sizes[dim], 1), &product) &&
           product <= std::int64_t{1} << 56 &&
           !__builtin_mul_overflow(strides[dim], std::max<std::int64_t>(sizes[dim] - 1, 0), &distance) &&
           !__builtin_add_overflow(reach.last, distance, &reach.last);
    reach.numel *= fits ? sizes[dim] : 0;
  }
  if (!fits) return {-1, -1};
  return reach;
}

class TorchFileReader {
 public:
  TorchFileReader(std::shared_ptr<const MappedFile> file, OpenOptions options)
      : file_(std::move(file)),
        options_(options),
        source_(std::make_shared<MappedSource>(file_->description())) {}

  std::shared_ptr<MappedSource> read(const std::string& root) {
    records_ = read_zip(*file_);
    for (const auto& [name, record] : records_)
      if (name.ends_with("/data.pkl") && name.find('/') == name.size() - 9) {
        if (!folder_.empty())
          file_->fail("is damaged: it has two pickles, '" + folder_ + "data.pkl' and '" + name + "'");
        folder_ = name.substr(0, name.size() - 8);
      }
    if (folder_.empty()) file_->refuse("is a zip file without data.pkl, so torch.save() has not written it");
    if (records_.contains(folder_ + "constants.pkl"))
      file_->refuse("is a TorchScript module, expected a file of torch.save()");
    if (const std::string order = record_text("byteorder"); !order.empty() && order != "little")
      file_->refuse("its bytes are in the order '" + order + "', expected 'little'");
    const std::string pickle = record_text("data.pkl");
    pickled_ = read_pickle(pickle, [&](bool unsupported, const std::string& why) {
      if (unsupported) file_->refuse(why);
      file_->fail("is damaged: " + why);
    });
    budget_ = 16 * pickle.size() + (std::uint64_t{4} << 20);
    visit(pickled_.root, root, 0);
    source_->set_notes(std::move(notes_));
    return source_;
  }

 private:
  std::string record_text(const std::string& name) {
    const auto found = records_.find(folder_ + name);
    if (found == records_.end()) return {};
    const ZipRecord& record = found->second;
    if (record.size > longest_pickle)
      file_->fail("its record '" + name + "' has " + std::to_string(record.size) +
                  " bytes, expected at most " + std::to_string(longest_pickle));
    if (options_.checksums && crc32_of(file_->data() + record.begin, record.size) != record.crc)
      file_->fail("is damaged: its record '" + name + "' at byte " + std::to_string(record.begin) +
                  " has another checksum than its directory says" + checksum_remedy);
    return std::string(file_->text(record.begin, record.size));
  }

  // Adds the tensors of a value. The budget limits values that contain one value many times.
  void visit(std::uint32_t index, const std::string& path, std::size_t depth) {
    const PickledValue& value = pickled_.values[index];
    const std::uint64_t cost =
        value.kind == PickledValue::Kind::tensor ? path.size() + 256 : 1 + path.size() / 64;
    if (depth > deepest_value || path.size() > longest_path || cost > budget_)
      file_->fail("is damaged: its dictionaries are nested too deep, or contain themselves, at '" +
                  path.substr(0, 80) + "'");
    budget_ -= cost;
    const auto below = [&](const std::string& name) { return path.empty() ? name : path + "." + name; };
    switch (value.kind) {
      case PickledValue::Kind::tensor:
        return add(path.empty() ? "tensor" : path, pickled_.tensors[static_cast<std::size_t>(value.number)]);
      case PickledValue::Kind::sequence:
        for (std::size_t i = 0; i < value.items.size(); ++i)
          visit(value.items[i], below(std::to_string(i)), depth + 1);
        return;
      case PickledValue::Kind::dictionary:
        for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
          const PickledValue& key = pickled_.values[value.items[i]];
          using Kind = PickledValue::Kind;
          if (key.kind != Kind::text && key.kind != Kind::integer && key.kind != Kind::plain)
            file_->refuse("a key of the dictionary '" + path + "' is not a text or a number");
          visit(value.items[i + 1], below(key.text), depth + 1);
        }
        return;
      case PickledValue::Kind::plain:
      case PickledValue::Kind::text:
      case PickledValue::Kind::integer:
        if (path.size() + value.text.size() + 256 > notes_left_) return;
        notes_left_ -= path.size() + value.text.size() + 256;
        notes_.emplace(path, value.text);
        return;
      case PickledValue::Kind::opaque:
      case PickledValue::Kind::storage:
      case PickledValue::Kind::global:
      case PickledValue::Kind::record:
        return;
    }
  }

  void add(const std::string& name, const PickledTensor& tensor) {
    const std::string record_name = "data/" + tensor.storage.key;
    const auto record = records_.find(folder_ + record_name);
    if (record == records_.end())
      file_->fail("is damaged: the storage '" + tensor.storage.key + "' of '" + name + "' is missing");
    const std::uint64_t size = record->second.size, item = c10::elementSize(tensor.dtype);
    const Reach reach = reach_of(tensor.offset, tensor.sizes, tensor.strides);
    if (reach.last < 0 || (reach.numel > 0 && static_cast<std::uint64_t>(reach.last) >= size / item))
      file_->fail("is damaged: '" + name + "' has elements outside of its storage '" + tensor.storage.key +
                  "' of " + std::to_string(size) + " bytes at byte " + std::to_string(record->second.begin));
    TensorForm form{tensor.dtype, tensor.sizes, tensor.strides, tensor.offset, tensor.storage.key};
    if (tensor.conjugate || tensor.negative) form.storage.clear();  // its values are not those of the storage
    if (record->second.begin % 8 != 0)
      file_->refuse("its record '" + record_name + "' is not aligned, as torch.save() does it");
    std::shared_ptr<CheckedRecord>& checked = checked_[tensor.storage.key];
    if (checked == nullptr && options_.checksums) {
      checked = std::make_shared<CheckedRecord>();
      checked->begin = record->second.begin, checked->size = size, checked->crc = record->second.crc;
    }
    if (reach.numel == 0) form.offset = 0;
    if (!source_->add(
            name, std::move(form),
            {file_,
             record->second.begin + (reach.numel == 0 ? 0 : static_cast<std::uint64_t>(tensor.offset) * item),
             checked, tensor.conjugate, tensor.negative}))
      file_->fail("has two tensors whose path is '" + name + "'");
  }

  const std::shared_ptr<const MappedFile> file_;
  const OpenOptions options_;
  const std::shared_ptr<MappedSource> source_;
  std::map<std::string, ZipRecord> records_;
  std::string folder_;  // with '/'
  Pickled pickled_;
  std::uint64_t budget_ = 0, notes_left_ = max_notes;
  std::map<std::string, std::shared_ptr<CheckedRecord>> checked_;  // by the keys of storages
  std::map<std::string, std::string> notes_;
};

}  // namespace

std::shared_ptr<MappedSource> open_torch_file(std::shared_ptr<const MappedFile> file, OpenOptions options,
                                              const std::string& root) {
  return TorchFileReader(std::move(file), options).read(root);
}

SinkLayout torch_layout(const fs::path& path, TensorForms forms) {
  SinkLayout layout;
  for (const auto& [name, form] : forms) {
    if (dtype_of(form.dtype) == nullptr)
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "'" + name + "' cannot be written: it is of type " + name_of(form.dtype));
    try {
      (void)nlohmann::json(name).dump();
    } catch (const nlohmann::json::exception&) {
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       path.string() + " cannot be written: names of tensors must be UTF-8");
    }
  }
  forms = without_lone_storages(std::move(forms), layout.same);
  // Storages: tensors that share memory have one, which begins with the first element that one of them has.
  // Their order follows from the names of tensors, so that it is the same on all ranks.
  struct Storage {
    std::int64_t begin = 0, end = 0;  // elements of the storage in the program
    std::size_t item = 1;
  };
  std::vector<Storage> storages;  // the key of each is its index
  std::map<std::string, std::size_t> numbers;
  const auto storage_of = [](const std::string& name, const TensorForm& form) {
    return form.storage.empty() ? "of " + name : "shared " + form.storage + " " + name_of(form.dtype);
  };
  for (auto& [name, form] : forms) {
    if (form.strides.empty()) {
      form.strides.resize(form.sizes.size(), 1);
      for (std::size_t dim = form.sizes.size(); dim-- > 1;)
        form.strides[dim - 1] = form.strides[dim] * std::max<std::int64_t>(form.sizes[dim], 1);
    }
    const std::int64_t end =
        form.numel() == 0 ? form.offset : reach_of(form.offset, form.sizes, form.strides).last + 1;
    const auto [number, added] = numbers.try_emplace(storage_of(name, form), storages.size());
    if (added) storages.push_back({form.offset, end, c10::elementSize(form.dtype)});
    Storage& storage = storages[number->second];
    storage.begin = std::min(storage.begin, form.offset);
    storage.end = std::max(storage.end, end);
  }
  std::vector<std::pair<std::string, PickledTensor>> tensors;
  const auto add = [&](const std::string& name, const std::string& kept) {
    const TensorForm& form = forms.at(kept);
    const std::size_t number = numbers.at(storage_of(kept, form));
    const Storage& storage = storages[number];
    const bool typed = dtype_of(form.dtype)->storage != nullptr;
    const std::int64_t numel = storage.end - storage.begin;
    tensors.push_back({name,
                       {{std::to_string(number), form.dtype,
                         typed ? numel : numel * static_cast<std::int64_t>(storage.item)},
                        form.dtype,
                        form.offset - storage.begin,
                        form.sizes,
                        form.strides}});
  };
  for (const auto& [name, form] : forms) add(name, name);
  for (const auto& [name, kept] : layout.same) add(name, kept);
  ZipLayout zip;
  const std::string folder = "archive/";
  std::vector<std::pair<std::uint64_t, std::string>> texts;
  const auto add_text = [&](const char* name, std::string text) {
    const std::uint64_t begin = zip.add(folder + name, text.size());
    texts.emplace_back(begin, std::move(text));
  };
  add_text("data.pkl", write_pickle(tensors));
  add_text("byteorder", "little");
  std::vector<std::uint64_t> begins;
  for (const Storage& storage : storages)
    begins.push_back(zip.add(folder + "data/" + std::to_string(begins.size()),
                             static_cast<std::uint64_t>(storage.end - storage.begin) * storage.item));
  add_text("version", "3\n");
  for (auto& [name, form] : forms) {
    const std::size_t number = numbers.at(storage_of(name, form));
    const Storage& storage = storages[number];
    const std::uint64_t begin =
        begins[number] + static_cast<std::uint64_t>(form.offset - storage.begin) * storage.item;
    layout.places.emplace(name, SinkLayout::Place{0, begin, form});
  }
  layout.files.push_back({path, zip.bytes(), [zip, texts](std::byte* file) {
                            for (const auto& [begin, text] : texts)
                              std::memcpy(file + begin, text.data(), text.size());
                            zip.complete(file);
                          }});
  return layout;
}

}  // namespace weft::weights
