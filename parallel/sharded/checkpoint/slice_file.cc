#include <weft/parallel/sharded/checkpoint/slice_file.h>

#include <weft/rpc/core/error.h>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>

namespace weft::sharded {
namespace {

using SliceJson = nlohmann::json;
constexpr auto slices_note = "weft.slices";

[[noreturn]] void refuse_slice(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, why);
}

std::string form_text(at::ScalarType dtype, const std::vector<std::int64_t>& sizes) {
  std::ostringstream text;
  text << c10::toString(dtype) << " " << at::IntArrayRef(sizes);
  return text.str();
}

std::string slice_name(const std::string& name, const SlicedTensor& tensor) {
  std::string stored = name;
  if (tensor.runs)
    stored += "[" + std::to_string(tensor.runs->first) + ":" + std::to_string(tensor.runs->length) + ":" +
              std::to_string(tensor.runs->distance) + "]";
  return stored + "[" + std::to_string(tensor.begin) + ":" +
         std::to_string(tensor.begin + tensor.values.numel()) + "]";
}

// Pieces that are closer than this are read together with the bytes between them, because the reader reads
// whole blocks of a checksum anyway.
constexpr std::int64_t joined_bytes = std::int64_t{1} << 20, largest_read = std::int64_t{64} << 20;

}  // namespace

std::uint32_t write_slices(const std::filesystem::path& path,
                           const std::map<std::string, SlicedTensor>& tensors,
                           const std::vector<std::string>& names) {
  dist_optim::TensorFile file;
  SliceJson slices = SliceJson::object();
  for (const std::string& name : names) {
    const SlicedTensor& tensor = tensors.at(name);
    const bool whole = tensor.values.numel() == c10::multiply_integers(tensor.sizes);
    const std::string stored = whole ? name : slice_name(name, tensor);
    if (!whole) slices[stored] = {{"of", name}, {"begin", tensor.begin}, {"sizes", tensor.sizes}};
    if (!whole && tensor.runs)
      slices[stored]["runs"] = {tensor.runs->first, tensor.runs->length, tensor.runs->distance};
    if (!file.tensors.emplace(stored, whole ? tensor.values.view(tensor.sizes) : tensor.values).second)
      refuse_slice("the tensor '" + stored +
                   "' has the name of a slice of another tensor, expected unique names");
  }
  try {
    file.notes[slices_note] = slices.dump();
  } catch (const SliceJson::exception&) {
    refuse_slice("a name of a tensor is not UTF-8, expected names in UTF-8");
  }
  return dist_optim::write_tensor_file(path, file);
}

SliceFileReader::SliceFileReader(const std::filesystem::path& path, std::uint32_t crc)
    : path_(path), file_(path) {
  const auto damaged = [&](const std::string& why) {
    throw rpc::Error(rpc::ErrorKind::failed_precondition, path.string() + ": " + why);
  };
  const auto note = file_.notes().find(slices_note);
  if (!file_.proven() || file_.crc() != crc || note == file_.notes().end())
    damaged("is not the file that was written for this checkpoint" +
            (file_.crc() == crc ? "" : c10::str(": its checksum is ", file_.crc(), ", expected ", crc)));
  try {
    const SliceJson slices = SliceJson::parse(note->second);
    for (const auto& [stored, form] : file_.tensors()) {
      const std::int64_t count = c10::multiply_integers(form.sizes);
      Slice slice{form.sizes, form.dtype, 0, count, stored, Runs::all(count)};
      std::string name = stored;
      if (const auto found = slices.find(stored); found != slices.end()) {
        name = found->at("of").get<std::string>();
        slice.sizes = found->at("sizes").get<std::vector<std::int64_t>>();
        slice.begin = found->at("begin").get<std::int64_t>();
        slice.end = slice.begin + count;
        const std::int64_t elements = c10::multiply_integers(slice.sizes);
        slice.runs = Runs::all(elements);
        if (const auto runs = found->find("runs"); runs != found->end())
          slice.runs = {runs->at(0).get<std::int64_t>(), runs->at(1).get<std::int64_t>(),
                        runs->at(2).get<std::int64_t>()};
        if (!slice.runs.fit(elements)) damaged("is damaged: '" + stored + "' has runs that do not fit");
      }
      slices_.emplace(std::move(name), std::move(slice));
    }
  } catch (const SliceJson::exception& error) {
    damaged(std::string("is damaged: its note of slices is not of this format: ") + error.what());
  }
}

void SliceFileReader::read(const Slice& slice, std::int64_t begin, const at::Tensor& to) {
  file_.read(slice.stored, begin - slice.begin, to);
}

SliceTarget::SliceTarget(std::string name, SlicedTensor tensor)
    : name_(std::move(name)), tensor_(std::move(tensor)) {
  const at::Tensor& values = tensor_.values;
  if (!values.defined() || values.dim() != 1)
    refuse_slice("tensor '" + name_ + "': the values are " +
                 (values.defined() ? "of " + std::to_string(values.dim()) + " dimensions" : "not defined") +
                 ", expected one dimension");
  const std::int64_t elements = c10::multiply_integers(tensor_.sizes);
  const std::int64_t end = tensor_.begin + values.numel();
  runs_ = tensor_.runs.value_or(Runs::all(elements));
  if (tensor_.begin < 0 || !runs_.fit(elements) || end > runs_.count(elements))
    refuse_slice("tensor '" + name_ + "' of " + form_text(values.scalar_type(), tensor_.sizes) +
                 " has no elements " + std::to_string(tensor_.begin) + " to " + std::to_string(end) +
                 ", expected a range within " +
                 std::to_string(runs_.fit(elements) ? runs_.count(elements) : elements) + " elements");
  if (values.numel() != 0) missing_.emplace_back(tensor_.begin, end);
}

bool SliceTarget::filled() const {
  return missing_.empty() && (seen_ || c10::multiply_integers(tensor_.sizes) != 0);
}

void SliceTarget::fill_from(SliceFileReader& file) {
  const auto found = file.slices().find(name_);
  if (found == file.slices().end()) return;
  const SliceFileReader::Slice& slice = found->second;
  if (slice.sizes != tensor_.sizes || slice.dtype != tensor_.values.scalar_type())
    refuse_slice(file.path().string() + ": tensor '" + name_ + "' is " + form_text(slice.dtype, slice.sizes) +
                 ", expected " + form_text(tensor_.values.scalar_type(), tensor_.sizes));
  seen_ = true;
  std::vector<Positions> left = missing_;
  read(file, slice, take_shared(runs_, left, slice.runs, {slice.begin, slice.end}));
  missing_ = std::move(left);
}

void SliceTarget::read(SliceFileReader& file, const SliceFileReader::Slice& slice,
                       const std::vector<SharedElements>& elements) const {
  const at::Tensor values = tensor_.values.detach();
  const auto item = static_cast<std::int64_t>(values.element_size());
  const auto target = [&](const SharedElements& each) {
    return values.narrow(0, each.to - tensor_.begin, each.count);
  };
  for (auto next = elements.begin(); next != elements.end();) {
    const std::int64_t begin = next->from;
    std::int64_t end = begin + next->count;
    auto last = next + 1;
    while (last != elements.end() && (last->from - end) * item < joined_bytes &&
           (last->from + last->count - begin) * item <= largest_read) {
      end = last->from + last->count;
      ++last;
    }
    if (last == next + 1) {
      file.read(slice, begin, target(*next));
    } else {
      const at::Tensor block = at::empty({end - begin}, values.options().device(at::kCPU));
      file.read(slice, begin, block);
      for (auto each = next; each != last; ++each)
        target(*each).copy_(block.narrow(0, each->from - begin, each->count));
    }
    next = last;
  }
}

void SliceTarget::expect_filled(const std::filesystem::path& checkpoint) const {
  if (filled()) return;
  const std::string lacks = seen_ ? "lacks the elements " + std::to_string(missing_.front().first) + " to " +
                                        std::to_string(missing_.front().second) + " of tensor '" + name_ + "'"
                                  : "has no tensor '" + name_ + "'";
  refuse_slice(checkpoint.string() + ": the checkpoint " + lacks);
}

}  // namespace weft::sharded
