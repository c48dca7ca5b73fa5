#include <weft/parallel/weights/sink.h>

#include <weft/parallel/weights/internal/dtypes.h>
#include <weft/parallel/weights/internal/file_sink.h>
#include <weft/rpc/core/error.h>

#include <fcntl.h>
#include <sys/mman.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <tuple>

namespace weft::weights {

Sink::~Sink() = default;

namespace {

using Layout = std::function<SinkLayout(TensorForms, std::map<std::string, std::string>)>;

[[noreturn]] void refuse_values(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, why);
}

class FileSink final : public Sink {
 public:
  FileSink(std::filesystem::path path, SinkOptions options, Layout layout)
      : path_(std::move(path)), options_(options), plan_(std::move(layout)) {}

  void declare(const TensorForms& tensors, const std::map<std::string, std::string>& notes) override {
    if (!files_.empty())
      refuse_values(path_.string() + ": the tensors have been declared, expected one declare()");
    layout_ = plan_(tensors, notes);
    for (const SinkLayout::File& each : layout_.files) {
      std::shared_ptr<CheckedFile> file;
      if (options_.rank == 0) {
        wholes_.push_back(std::make_unique<WholeFile>(each.path));
        file = std::shared_ptr<CheckedFile>(std::shared_ptr<void>(), &wholes_.back()->file());  // not owned
        file->reserve(each.bytes);
      } else {
        file = std::make_shared<CheckedFile>(WholeFile::part_of(each.path), O_RDWR);
        if (file->size() != each.bytes)
          file->fail("has " + std::to_string(file->size()) + " bytes, expected " +
                     std::to_string(each.bytes) + ": rank 0 has not declared these tensors");
      }
      files_.push_back(std::make_shared<MappedFile>(std::move(file), MappedFile::Access::write));
    }
    for (const auto& [name, place] : layout_.places) written_.emplace(name, 0);
  }

  void write(const std::string& name, const at::Tensor& values, const Slice& slice, bool convert) override {
    const at::NoGradGuard no_history;
    const std::string what = path_.string() + ": '" + name + "'";
    if (finished_) refuse_values(what + " cannot be written: the sink has been finished");
    if (layout_.same.contains(name)) return;
    const auto found = layout_.places.find(name);
    if (found == layout_.places.end()) refuse_values(what + " was not declared");
    const SinkLayout::Place& place = found->second;
    const at::Tensor whole = mapped_tensor(files_[place.file], place.begin, place.form);
    if (slice.flattened && !whole.is_contiguous())
      refuse_values(what + " has strides in this file, expected a slice that is not flattened");
    const at::Tensor part = slice.of(whole, what);
    if (!values.defined() || values.sizes() != part.sizes() ||
        (values.scalar_type() != part.scalar_type() && !convert))
      refuse_values(
          what + " is to get " + to_text({part.scalar_type(), part.sizes().vec()}) +
          ", the given values are " +
          (values.defined() ? to_text({values.scalar_type(), values.sizes().vec()}) : "not defined"));
    part.copy_(values);
    written_.at(name) += part.numel();
  }

  void finish() override {
    if (finished_) refuse_values(path_.string() + ": the sink has been finished, expected one finish()");
    if (files_.empty()) refuse_values(path_.string() + ": no tensors have been declared, expected declare()");
    if (options_.rank != 0) {
      for (const auto& file : files_) sync(*file);
      finished_ = true;
      return;
    }
    std::string missing;
    for (const auto& [name, place] : layout_.places)
      if (options_.ranks == 1 && written_.at(name) < place.form.numel())
        missing += (missing.empty() ? "" : ", ") + name;
    if (!missing.empty())
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       path_.string() + ": elements of these tensors have not been written: " + missing);
    finished_ = true;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      layout_.files[i].complete(files_[i]->data());
      sync(*files_[i]);
    }
    for (const auto& whole : wholes_) whole->finish();
    layout_.publish();
  }

 private:
  static void sync(const MappedFile& file) {
    if (file.size() != 0 && ::msync(file.data(), file.size(), MS_SYNC) != 0)
      file.file().fail_with_errno("cannot be synced");
  }

  const std::filesystem::path path_;
  const SinkOptions options_;
  const Layout plan_;
  SinkLayout layout_;
  std::vector<std::unique_ptr<WholeFile>> wholes_;
  std::vector<std::shared_ptr<MappedFile>> files_;
  std::map<std::string, std::atomic<std::int64_t>> written_;
  bool finished_ = false;
};

// Whether two indices can have the same element.
bool overlaps_itself(const TensorForm& form) {
  std::vector<std::size_t> dims;
  for (std::size_t dim = 0; dim < form.sizes.size(); ++dim)
    if (form.sizes[dim] > 1) dims.push_back(dim);
  std::sort(dims.begin(), dims.end(), [&](auto a, auto b) { return form.strides[a] < form.strides[b]; });
  std::int64_t reach = 0;  // the largest distance between two elements of the dimensions so far
  for (const std::size_t dim : dims) {
    if (form.strides[dim] <= reach) return true;
    reach += form.strides[dim] * (form.sizes[dim] - 1);
  }
  return false;
}

// Whether the elements fill a range of memory.
bool is_dense(const TensorForm& form) {
  std::int64_t reach = 0;
  for (std::size_t dim = 0; dim < form.sizes.size(); ++dim)
    reach += form.strides[dim] * (form.sizes[dim] - 1);
  return reach + 1 == form.numel();
}

}  // namespace

TensorForms without_lone_storages(TensorForms forms, std::map<std::string, std::string>& same) {
  const auto make_own = [](TensorForm& form, bool keep_strides) {
    form.storage.clear();
    form.offset = 0;
    if (!keep_strides) form.strides.clear();
  };
  // By storage and dtype, because views of one memory as several dtypes cannot share it in a file; then by
  // elements.
  using Elements = std::tuple<std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>>;
  std::map<std::pair<std::string, at::ScalarType>, std::map<Elements, std::string>> users;
  for (auto& each : forms) {  // clang 14 cannot capture [name, form]
    const std::string& name = each.first;
    TensorForm& form = each.second;
    if (form.strides.empty() && !form.storage.empty()) {  // C order
      form.strides.resize(form.sizes.size(), 1);
      for (std::size_t dim = form.sizes.size(); dim-- > 1;)
        form.strides[dim - 1] = form.strides[dim] * std::max<std::int64_t>(form.sizes[dim], 1);
    }
    if (form.storage.empty() || form.numel() == 0 || overlaps_itself(form)) {
      const bool keep = form.storage.empty() && !form.strides.empty() && form.numel() != 0 &&
                        !overlaps_itself(form) && is_dense(form);
      make_own(form, keep);
      continue;
    }
    const auto [first, added] =
        users[{form.storage, form.dtype}].emplace(std::tuple(form.offset, form.sizes, form.strides), name);
    if (!added) same.emplace(name, first->second);
  }
  for (const auto& [storage, names] : users) {
    TensorForm& only = forms.at(names.begin()->second);
    if (names.size() == 1) make_own(only, is_dense(only));
  }
  for (const auto& [name, kept] : same) forms.erase(name);
  return forms;
}

std::unique_ptr<Sink> create_sink(const std::filesystem::path& path, SinkOptions options) {
  const std::string extension = path.extension().string();
  Layout layout;
  std::error_code ignored;  // a path that cannot be examined cannot be written
  if (std::filesystem::is_directory(path, ignored) || extension.empty()) {
    layout = [path, options](TensorForms forms, std::map<std::string, std::string> notes) {
      return shards_layout(path, std::move(forms), std::move(notes), options.max_shard_bytes);
    };
  } else if (extension == ".safetensors") {
    layout = [path](TensorForms forms, std::map<std::string, std::string> notes) {
      return safetensors_layout(path, std::move(forms), std::move(notes));
    };
  } else if (extension == ".pt" || extension == ".pth" || extension == ".bin") {
    layout = [path](TensorForms forms, const std::map<std::string, std::string>&) {
      return torch_layout(path, std::move(forms));
    };
  } else {
    refuse_values(path.string() +
                  ": expected a path that ends in .safetensors, .pt, .pth or .bin, or a folder");
  }
  return std::make_unique<FileSink>(path, options, std::move(layout));
}

RenamedForms renamed(const TensorForms& forms, const SaveOptions& options) {
  RenamedForms all;
  for (const auto& [name, form] : forms) {
    const std::string to = options.names ? options.names(name) : name;
    if (options.names && to.empty()) continue;
    all.names.emplace_back(to, name);
    TensorForm& own = all.forms[to];
    if (all.names.size() != all.forms.size())
      refuse_values("two tensors have the name '" + to + "' in the file, expected unique names");
    own = form;
    if (options.dtype && at::isFloatingType(form.dtype)) {
      // Views of one memory as two dtypes share it no longer when both are converted.
      if (!own.storage.empty()) own.storage += " as " + name_of(form.dtype);
      own.dtype = *options.dtype;
    }
  }
  return all;
}

void save_as(const TensorForms& forms, std::map<std::string, std::string> notes,
             const std::function<at::Tensor(const std::string&)>& values, Sink& sink,
             const SaveOptions& options) {
  const RenamedForms all = renamed(forms, options);
  for (const auto& [name, text] : options.notes) notes[name] = text;
  sink.declare(all.forms, notes);
  for (const auto& [to, name] : all.names) sink.write(to, values(name), {}, options.dtype.has_value());
  sink.finish();
}

void copy(const Source& source, Sink& sink, const SaveOptions& options) {
  save_as(
      source.tensors(), source.notes(), [&](const std::string& name) { return source.view(name); }, sink,
      options);
}

}  // namespace weft::weights
