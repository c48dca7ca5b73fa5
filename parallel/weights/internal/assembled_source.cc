#include <weft/parallel/weights/internal/assembled_source.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

namespace weft::weights {

at::Tensor AssembledSource::view(const std::string& name) const {
  const TensorForm& its_form = form(name);
  const at::Tensor whole = at::empty(its_form.sizes, at::TensorOptions(its_form.dtype));
  if (whole.numel() != 0)
    fill(name, {std::vector<std::int64_t>(its_form.sizes.size()), its_form.sizes}, whole);
  return whole;
}

namespace {

// The indices of an element of a tensor in C order.
std::vector<std::int64_t> indices_of(std::int64_t element, const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> indices(sizes.size());
  for (std::size_t dim = sizes.size(); dim-- > 0; element /= sizes[dim]) indices[dim] = element % sizes[dim];
  return indices;
}

std::int64_t element_of(const std::vector<std::int64_t>& indices, const std::vector<std::int64_t>& sizes) {
  std::int64_t element = 0;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) element = element * sizes[dim] + indices[dim];
  return element;
}

// The smallest box that has these elements, and whose elements are consecutive.
Box box_around(std::int64_t first, std::int64_t last, const std::vector<std::int64_t>& sizes) {
  Box box{indices_of(first, sizes), std::vector<std::int64_t>(sizes.size(), 1)};
  const std::vector<std::int64_t> end = indices_of(last, sizes);
  std::size_t dim = 0;
  while (dim < sizes.size() && box.offsets[dim] == end[dim]) ++dim;
  if (dim == sizes.size()) return box;
  box.sizes[dim] = end[dim] - box.offsets[dim] + 1;
  for (++dim; dim < sizes.size(); ++dim) box.offsets[dim] = 0, box.sizes[dim] = sizes[dim];
  return box;
}

}  // namespace

void AssembledSource::read(const std::string& name, const at::Tensor& to, const Slice& slice,
                           bool convert) const {
  const at::NoGradGuard no_history;
  const TensorForm& its_form = form(name);
  const at::Tensor part =
      part_to_read(name, to, slice, convert,
                   at::empty(its_form.sizes, at::TensorOptions(its_form.dtype).device(at::kMeta)));
  if (part.numel() == 0) return;
  const std::int64_t first = part.storage_offset();
  const Box box = slice.flattened ? box_around(first, first + part.numel() - 1, its_form.sizes)
                                  : Box{indices_of(first, its_form.sizes), part.sizes().vec()};
  // A flat slice is a part of its box.
  const std::int64_t skipped = slice.flattened ? first - element_of(box.offsets, its_form.sizes) : 0;
  const bool direct = to.device().is_cpu() && to.scalar_type() == its_form.dtype && to.is_contiguous() &&
                      !to.is_conj() && !to.is_neg() && c10::multiply_integers(box.sizes) == to.numel();
  if (direct) return fill(name, box, to.view(box.sizes));
  const at::Tensor values = at::empty(box.sizes, at::TensorOptions(its_form.dtype));
  fill(name, box, values);
  to.copy_(slice.flattened ? values.view({-1}).narrow(0, skipped, part.numel()) : values);
}

}  // namespace weft::weights
