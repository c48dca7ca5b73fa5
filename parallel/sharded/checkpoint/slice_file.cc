#include <weft/parallel/sharded/checkpoint/slice_file.h>

#include <weft/rpc/core/error.h>

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

}  // namespace

std::uint32_t write_slices(const std::filesystem::path& path,
                           const std::map<std::string, SlicedTensor>& tensors,
                           const std::vector<std::string>& names) {
  dist_optim::TensorFile file;
  SliceJson slices = SliceJson::object();
  for (const std::string& name : names) {
    const SlicedTensor& tensor = tensors.at(name);
    const bool whole = tensor.values.numel() == c10::multiply_integers(tensor.sizes);
    const std::string stored = whole ? name
                                     : name + "[" + std::to_string(tensor.begin) + ":" +
                                           std::to_string(tensor.begin + tensor.values.numel()) + "]";
    if (!whole) slices[stored] = {{"of", name}, {"begin", tensor.begin}, {"sizes", tensor.sizes}};
    if (!file.tensors.emplace(stored, whole ? tensor.values.view(tensor.sizes) : tensor.values).second)
      refuse_slice("a tensor cannot be named '" + stored + "', as a slice of another is");
  }
  try {
    file.notes[slices_note] = slices.dump();
  } catch (const SliceJson::exception&) {
    refuse_slice("names of tensors must be UTF-8");
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
    damaged("is not the file that was written for this checkpoint");
  try {
    const SliceJson slices = SliceJson::parse(note->second);
    for (const auto& [stored, form] : file_.tensors()) {
      const std::int64_t count = c10::multiply_integers(form.sizes);
      Slice slice{form.sizes, form.dtype, 0, count, stored};
      std::string name = stored;
      if (const auto found = slices.find(stored); found != slices.end()) {
        name = found->at("of").get<std::string>();
        slice.sizes = found->at("sizes").get<std::vector<std::int64_t>>();
        slice.begin = found->at("begin").get<std::int64_t>();
        slice.end = slice.begin + count;
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
    refuse_slice("tensor '" + name_ + "': the values are not defined, or not of one dimension");
  const std::int64_t end = tensor_.begin + values.numel();
  if (tensor_.begin < 0 || end > c10::multiply_integers(tensor_.sizes))
    refuse_slice("tensor '" + name_ + "' of " + form_text(values.scalar_type(), tensor_.sizes) +
                 " has no elements " + std::to_string(tensor_.begin) + " to " + std::to_string(end));
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
                 ", not " + form_text(tensor_.values.scalar_type(), tensor_.sizes));
  seen_ = true;
  std::vector<std::pair<std::int64_t, std::int64_t>> left;
  for (const auto& [begin, end] : missing_) {
    const std::int64_t from = std::max(begin, slice.begin), to = std::min(end, slice.end);
    if (from >= to) {
      left.emplace_back(begin, end);
      continue;
    }
    file.read(slice, from, tensor_.values.detach().slice(0, from - tensor_.begin, to - tensor_.begin));
    if (begin < from) left.emplace_back(begin, from);
    if (to < end) left.emplace_back(to, end);
  }
  missing_ = std::move(left);
}

void SliceTarget::expect_filled(const std::filesystem::path& checkpoint) const {
  if (filled()) return;
  const std::string lacks = seen_ ? "lacks the elements " + std::to_string(missing_.front().first) + " to " +
                                        std::to_string(missing_.front().second) + " of tensor '" + name_ + "'"
                                  : "has no tensor '" + name_ + "'";
  refuse_slice(checkpoint.string() + ": the checkpoint " + lacks);
}

}  // namespace weft::sharded
