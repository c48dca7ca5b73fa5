#include <weft/parallel/weights/rearranged.h>

#include <weft/parallel/weights/internal/assembled_source.h>
#include <weft/rpc/core/error.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <utility>

namespace weft::weights {
namespace {

class RearrangedSource final : public AssembledSource {
 public:
  RearrangedSource(std::shared_ptr<const Source> source, std::map<std::string, Arrangement> arrangements)
      : source_(std::move(source)) {
    description_ = source_->description();
    notes_ = source_->notes();
    std::set<std::string> used;
    for (auto& [name, arrangement] : arrangements) {
      tensors_.emplace(name, add(name, std::move(arrangement)));
      for (const Part& part : arranged_.at(name)) used.insert(part.name);
    }
    for (const auto& [name, form] : source_->tensors()) {
      if (used.contains(name)) continue;
      if (!tensors_.emplace(name, form).second)
        throw refusal(name, "the file has another tensor of this name, which no arrangement uses");
    }
  }

  at::Tensor view(const std::string& name) const override {
    return arranged_.contains(name) ? AssembledSource::view(name) : source_->view(name);
  }
  void read(const std::string& name, const at::Tensor& to, const Slice& slice, bool convert) const override {
    arranged_.contains(name) ? AssembledSource::read(name, to, slice, convert)
                             : source_->read(name, to, slice, convert);
  }

 protected:
  void fill(const std::string& name, const Box& box, const at::Tensor& values) const override {
    for (const Part& part : arranged_.at(name)) {
      const auto dim = static_cast<std::size_t>(part.dim);
      const std::int64_t begin = std::max(box.offsets[dim], part.begin),
                         end = std::min(box.offsets[dim] + box.sizes[dim], part.end);
      if (begin >= end) continue;
      Slice slice;  // of the tensor of the file
      for (std::size_t i = 0; i < box.sizes.size(); ++i) {
        const std::int64_t first = i == dim ? begin - part.begin : box.offsets[i];
        const std::size_t of = part.transposed && i < 2 ? 1 - i : i;
        slice.extents.push_back({static_cast<std::int64_t>(of), part.offsets[of] + first,
                                 part.offsets[of] + first + (i == dim ? end - begin : box.sizes[i])});
      }
      const at::Tensor to = values.narrow(part.dim, begin - box.offsets[dim], end - begin);
      source_->read(part.name, part.transposed ? to.transpose(0, 1) : to, slice);
    }
  }

 private:
  struct Part {
    std::string name;
    std::vector<std::int64_t> offsets;  // of the slice in the tensor of the file
    std::int64_t dim, begin, end;       // its place in the new tensor
    bool transposed;
  };

  rpc::Error refusal(const std::string& name, const std::string& why) const {
    return rpc::Error(rpc::ErrorKind::invalid_argument, description_ + ": '" + name + "': " + why);
  }

  // Plans a tensor, and returns its form.
  TensorForm add(const std::string& name, Arrangement arrangement) {
    if (arrangement.parts.empty()) throw refusal(name, "an arrangement without parts, expected at least one");
    TensorForm whole;
    std::vector<Part>& parts = arranged_[name];
    for (Arrangement::Part& each : arrangement.parts) {
      const TensorForm& form = source_->form(each.name);
      if (each.slice.flattened) throw refusal(name, "a slice is flattened, expected slices of dimensions");
      const at::Tensor meta = at::empty(form.sizes, at::TensorOptions(form.dtype).device(at::kMeta));
      TensorForm its{form.dtype, each.slice.of(meta, description_ + ": '" + name + "'").sizes().vec()};
      Part part{.name = each.name,
                .offsets = std::vector<std::int64_t>(form.sizes.size()),
                .dim = arrangement.dim,
                .begin = parts.empty() ? 0 : parts.back().end,
                .end = 0,
                .transposed = arrangement.transposed};
      for (const Slice::Extent& extent : each.slice.extents)
        part.offsets[static_cast<std::size_t>(extent.dim)] += extent.begin;
      if (part.transposed) {
        if (its.sizes.size() < 2) throw refusal(name, to_text(its) + " cannot be transposed");
        std::swap(its.sizes[0], its.sizes[1]);
      }
      if (part.dim < 0 || part.dim >= static_cast<std::int64_t>(its.sizes.size()))
        throw refusal(name, to_text(its) + " has no dimension " + std::to_string(part.dim));
      const auto dim = static_cast<std::size_t>(part.dim);
      part.end = part.begin + its.sizes[dim];
      if (parts.empty()) whole = its;
      TensorForm like = its;
      if (like.sizes.size() == whole.sizes.size()) like.sizes[dim] = whole.sizes[dim];
      if (like.dtype != whole.dtype || like.sizes != whole.sizes)
        throw refusal(name, "the part '" + each.name + "' is " + to_text(its) + ", which does not fit " +
                                to_text(whole) + " along dimension " + std::to_string(part.dim));
      whole.sizes[dim] = part.end;
      parts.push_back(std::move(part));
    }
    return whole;
  }

  const std::shared_ptr<const Source> source_;
  std::map<std::string, std::vector<Part>> arranged_;
};

}  // namespace

std::shared_ptr<Source> rearranged(std::shared_ptr<const Source> source,
                                   std::map<std::string, Arrangement> arrangements) {
  return std::make_shared<RearrangedSource>(std::move(source), std::move(arrangements));
}

}  // namespace weft::weights
