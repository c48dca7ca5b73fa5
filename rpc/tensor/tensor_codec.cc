#include <weft/rpc/tensor/tensor_codec.h>

#include <weft/rpc/tensor/device_slots.h>
#include <weft/rpc/tensor/dtype.h>
#include <weft/rpc/tensor/tensor_hook.h>
#include <weft/rpc/wire/message.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace weft::rpc {
namespace {

constexpr std::size_t inline_limit = 1024;
constexpr std::size_t max_dimensions = 64;

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(ErrorKind::unsupported, "unsupported tensor: " + what);
}

void check_supported(const at::Tensor& tensor) {
  if (tensor.is_quantized()) unsupported("quantized");
  if (tensor.is_nested()) unsupported("nested");
  if (tensor.is_meta()) unsupported("on the meta device");
  if (tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python)) unsupported("a subclass");
  if (tensor.layout() != at::kStrided && tensor.layout() != at::kSparse && tensor.layout() != at::kSparseCsr)
    unsupported("of layout " + c10::str(tensor.layout()) + ", expected strided, COO or CSR");
}

enum class Copy { if_shared, never, always };  // of the caller's memory

// Whether other code refers to a result, and so may change it before it is sent. Call it before code of this
// file shares the memory of the result.
bool held_elsewhere(const at::Tensor& tensor) {
  if (!tensor.is_leaf()) return false;  // autograd's version check guards it
  return tensor.use_count() > 1 || tensor.layout() != at::kStrided || tensor.storage().use_count() > 1;
}

std::int64_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

// How one tensor is sent.
struct Way {
  std::optional<std::uint64_t> mark;
  std::optional<std::string> device;  // at the receiver, if it is an accelerator
  bool copy = false;                  // copies the caller's memory
  tensor::HostCopies* copies = nullptr;
  bool requires_grad = false;  // at the receiver, without a pass
  bool keeps_strides = false;  // also of a view that is not dense

  std::size_t fields() const { return (mark ? 1 : 0) + (device ? 1 : 0) + (requires_grad ? 1 : 0); }
  void write(RecordWriter& record, std::size_t i) const {
    if (mark) record.field(i++, "mark").set_uint(*mark);
    if (device) record.field(i++, "device").set_text(*device);
    if (requires_grad) record.field(i++, "requires_grad").set_bool(true);
  }
  Way of_parts() const { return {{}, {}, copy, copies}; }
};

void attach(ValueWriter writer, at::Tensor dense) {
  const std::size_t bytes = dense.nbytes();
  auto owner = std::make_shared<at::Tensor>(std::move(dense));
  auto* data = static_cast<std::byte*>(const_cast<void*>(owner->const_data_ptr()));
  writer.set_attachment(Buffer(std::move(owner), data, bytes));
}

void encode_elements(ValueWriter writer, const at::Tensor& original, const at::Tensor& base, const Way& way) {
  at::Tensor dense = base.contiguous();
  const std::size_t bytes = dense.nbytes();
  // Never inline: its elements are read after all copies to the host have completed.
  if (!dense.is_cpu() && bytes != 0) return attach(writer, way.copies->start(dense));
  const auto* elements = static_cast<const std::byte*>(dense.const_data_ptr());
  if (bytes <= inline_limit) return writer.set_bytes({elements, bytes});
  // contiguous() has made a copy, unless the memory is still the caller's.
  const bool borrowed = dense.is_alias_of(original);
  if (borrowed && way.copy) {
    // Not by clone(), which would start a team of OpenMP threads for each thread that replies.
    Buffer own = Buffer::allocate(bytes);
    std::memcpy(own.data(), elements, bytes);
    return writer.set_attachment(std::move(own));
  }
  if (borrowed && !original.is_inference())
    writer.message().borrow(
        [original, version = version_of(original)] { return version_of(original) == version; });
  attach(writer, std::move(dense));
}

void encode_plain(ValueWriter writer, const at::Tensor& tensor, const Way& way);

void encode_sparse(ValueWriter writer, const at::Tensor& tensor, const Way& way) {
  const bool coo = tensor.layout() == at::kSparse;
  const Way of_parts = way.of_parts();
  RecordWriter record = writer.set_record(6 + way.fields());
  std::size_t i = 0;
  record.field(i++, "dtype").set_text(tensor::dtype_name(tensor.scalar_type()));
  record.field(i++, "shape").set_ints({tensor.sizes().data(), tensor.sizes().size()});
  record.field(i++, "layout").set_text(coo ? "coo" : "csr");
  if (coo) {
    encode_plain(record.field(i++, "indices"), tensor._indices(), of_parts);
    encode_plain(record.field(i++, "values"), tensor._values(), of_parts);
    record.field(i++, "coalesced").set_bool(tensor.is_coalesced());
  } else {
    encode_plain(record.field(i++, "crow"), tensor.crow_indices(), of_parts);
    encode_plain(record.field(i++, "columns"), tensor.col_indices(), of_parts);
    encode_plain(record.field(i++, "values"), tensor.values(), of_parts);
  }
  way.write(record, i);
}

// For a tensor that is dense in memory, but not in row-major order: its dimensions from the slowest to the
// fastest. Otherwise empty.
std::vector<std::int64_t> order_of(const at::Tensor& dense) {
  if (dense.numel() < 2 || dense.is_contiguous() || !dense.is_non_overlapping_and_dense()) return {};
  std::vector<std::int64_t> order(static_cast<std::size_t>(dense.dim()));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return dense.stride(a) > dense.stride(b); });
  return order;
}

// The number of elements in memory from the first to the last of a view.
std::int64_t span_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::int64_t span = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    std::int64_t reach = 0;
    if (strides[d] < 0 || __builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) ||
        __builtin_add_overflow(span, reach, &span))
      throw Error(ErrorKind::invalid_argument, "a tensor with a stride of " + std::to_string(strides[d]) +
                                                   " in a dimension of size " + std::to_string(sizes[d]));
  }
  return span;
}

// Whether the memory that a view spans is sent. A view of a small part of it is sent without the gaps.
bool is_sent_with_gaps(const at::Tensor& view) {
  constexpr std::int64_t small = 8 << 10;  // bytes
  if (view.numel() < 2 || view.is_non_overlapping_and_dense()) return false;
  const std::int64_t span = span_of(view.sizes(), view.strides());
  return span <= 2 * view.numel() || span * static_cast<std::int64_t>(view.element_size()) <= small;
}

void encode_plain(ValueWriter writer, const at::Tensor& tensor, const Way& way) {
  if (tensor.layout() != at::kStrided) return encode_sparse(writer, tensor, way);
  at::Tensor base = tensor.resolve_conj().resolve_neg();
  std::vector<std::int64_t> expanded;
  for (std::int64_t d = 0; d < base.dim(); ++d)
    if (base.stride(d) == 0 && base.size(d) > 1) {
      expanded.push_back(d);
      base = base.narrow(d, 0, 1);
    }
  std::vector<std::int64_t> strides;
  if (way.keeps_strides && is_sent_with_gaps(base)) {
    strides = base.strides().vec();
    base = base.as_strided({span_of(base.sizes(), strides)}, {1});
  }
  const std::vector<std::int64_t> order = order_of(base);
  RecordWriter record = writer.set_record(3 + (expanded.empty() ? 0 : 1) + (strides.empty() ? 0 : 1) +
                                          (order.empty() ? 0 : 1) + way.fields());
  std::size_t i = 0;
  record.field(i++, "dtype").set_text(tensor::dtype_name(tensor.scalar_type()));
  record.field(i++, "shape").set_ints({tensor.sizes().data(), tensor.sizes().size()});
  encode_elements(record.field(i++, "data"), tensor, base, way);
  if (!expanded.empty()) record.field(i++, "expanded").set_ints(expanded);
  if (!strides.empty()) record.field(i++, "strides").set_ints(strides);
  if (!order.empty()) record.field(i++, "order").set_ints(order);
  way.write(record, i);
}

// The device of the tensor at the receiver.
c10::Device place_of(const at::Tensor& tensor, const tensor::OutgoingDevices* devices, bool reply) {
  const auto place = devices != nullptr ? devices->map.find(tensor.device())
                     : tensor.is_cpu()  ? std::optional(tensor.device())
                                        : std::nullopt;
  if (place) return *place;
  const std::string tensor_there = "a tensor on " + tensor.device().str() + " has no device at " +
                                   (devices != nullptr ? "'" + devices->receiver + "'"
                                    : reply            ? "the caller"
                                                       : "the callee");
  throw Error(ErrorKind::failed_precondition,
              tensor_there +
                  ": the caller needs a device map for the callee that names this device "
                  "(tensor::DeviceOptions), or move the tensor to the CPU");
}

void encode_tensor(ValueWriter writer, const at::Tensor& tensor, Copy when, bool as_leaf = false) {
  if (!tensor.defined()) return writer.set_nil();
  check_supported(tensor);
  auto* devices = writer.message().slots().find<tensor::OutgoingDevices>();
  const c10::Device place = place_of(tensor, devices, writer.message().is_reply());
  Way way{.keeps_strides = as_leaf};
  std::optional<c10::MultiStreamGuard> on_streams;
  if (!tensor.is_cpu()) {
    way.copies = &devices->copies;
    on_streams.emplace(devices->streams);
  }
  if (!place.is_cpu()) {
    way.device = place.str();
    devices->places = true;
  }
  way.copy = when == Copy::always || (when == Copy::if_shared && held_elsewhere(tensor));
  at::NoGradGuard no_grad;
  if (auto* hook = writer.message().slots().find<tensor::TensorHook>()) {
    const auto sent = hook->sending(tensor);
    way.mark = sent.mark;
    return encode_plain(writer, sent.tensor, way);
  }
  way.requires_grad = as_leaf && tensor.requires_grad();
  if (tensor.requires_grad() && !tensor.is_leaf() && !as_leaf)
    throw Error(ErrorKind::failed_precondition,
                "a tensor that requires grad would be cut from its graph: give the call a pass, or detach() "
                "the tensor");
  encode_plain(writer, tensor.detach(), way);
}

ValueReader field(const ValueReader& record, std::string_view name, std::size_t guess) {
  ValueReader value;
  if (!record.find_field(name, guess, value))
    throw Error(ErrorKind::type_mismatch,
                "expected a tensor, found a record without '" + std::string(name) + "'");
  return value;
}

std::vector<std::int64_t> read_ints(const ValueReader& value, std::size_t max_count) {
  const std::size_t n = value.size();
  if (n > max_count)
    throw Error(
        ErrorKind::invalid_argument,
        "a tensor of " + std::to_string(n) + " dimensions, expected at most " + std::to_string(max_count));
  std::vector<std::int64_t> numbers(n);
  for (std::size_t i = 0; i < n; ++i) numbers[i] = value.int_at(i);
  return numbers;
}

// The bytes of a tensor of this shape; throws on any overflow.
std::size_t checked_bytes(const std::vector<std::int64_t>& shape, std::size_t item) {
  std::uint64_t bytes = item;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0)
      throw Error(ErrorKind::invalid_argument, "a tensor with a dimension of size " + std::to_string(size));
    if (size == 0) empty = true;
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)), &bytes) ||
        bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      throw Error(ErrorKind::resource_exhausted, "a tensor of more than 2^63 - 1 bytes");
  }
  return empty ? 0 : static_cast<std::size_t>(bytes);
}

// No received tensor is a view: this code runs under no-grad, and autograd does not allow in-place changes of
// a view that was made under no-grad.

// The same values in memory with the dimensions in this order, from the slowest to the fastest.
at::Tensor laid_out(const at::Tensor& tensor, const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()), -1);
  std::int64_t stride = 1;
  for (auto next = order.rbegin(); next != order.rend(); ++next) {
    const std::int64_t d = *next;
    if (d < 0 || d >= tensor.dim() || strides[static_cast<std::size_t>(d)] >= 0)
      throw Error(ErrorKind::invalid_argument,
                  "a tensor of " + std::to_string(tensor.dim()) + " dimensions, whose order has dimension " +
                      std::to_string(d) + (d < 0 || d >= tensor.dim() ? "" : " twice"));
    strides[static_cast<std::size_t>(d)] = stride;
    stride *= std::max<std::int64_t>(tensor.size(d), 1);
  }
  if (order.size() != strides.size())
    throw Error(ErrorKind::invalid_argument, "a tensor of " + std::to_string(tensor.dim()) +
                                                 " dimensions, whose order has " +
                                                 std::to_string(order.size()));
  return at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

// Expands dimensions of size one to this shape. No other reference to the tensor exists.
at::Tensor repeated(at::Tensor tensor, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides = tensor.strides().vec();
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (shape[d] != tensor.size(static_cast<std::int64_t>(d))) strides[d] = 0;
  return tensor.as_strided_(shape, strides);
}

// place: an accelerator; null: the CPU.
at::Tensor decode_plain(const ValueReader& reader, const c10::Device* place = nullptr);

// Whether each place occurs once, in row-major order. indices: a row for each sparse dimension.
bool is_coalesced(const at::Tensor& indices) {
  const at::Tensor rows = indices.contiguous();
  const auto* const first = rows.const_data_ptr<std::int64_t>();
  const std::int64_t dimensions = rows.size(0), places = rows.size(1);
  for (std::int64_t place = 1; place < places; ++place) {
    std::int64_t d = 0;
    while (d < dimensions && first[d * places + place] == first[d * places + place - 1]) ++d;
    if (d == dimensions || first[d * places + place] < first[d * places + place - 1]) return false;
  }
  return true;
}

at::Tensor decode_sparse(const ValueReader& reader, std::string_view layout, at::ScalarType type,
                         const std::vector<std::int64_t>& shape) {
  const at::Tensor values = decode_plain(field(reader, "values", 4));
  if (values.scalar_type() != type)
    throw Error(ErrorKind::invalid_argument, std::string("a sparse tensor of type ") + c10::toString(type) +
                                                 ", whose values have type " +
                                                 c10::toString(values.scalar_type()));
  try {
    if (layout == "coo") {
      // The checking constructor, because indices come from a peer.
      at::Tensor tensor = at::sparse_coo_tensor(decode_plain(field(reader, "indices", 3)), values, shape);
      at::_validate_sparse_coo_tensor_args(tensor._indices(), tensor._values(), shape);
      // Operators rely on the mark, so the claim of the peer is checked.
      ValueReader coalesced;
      const bool claimed = reader.find_field("coalesced", 5, coalesced) && coalesced.get_bool();
      if (claimed && !is_coalesced(tensor._indices()))
        throw Error(ErrorKind::invalid_argument,
                    "a coalesced sparse tensor, whose indices are not in ascending order without duplicates");
      return tensor._coalesced_(claimed);
    }
    if (layout == "csr") {
      const at::Tensor crow = decode_plain(field(reader, "crow", 3)),
                       columns = decode_plain(field(reader, "columns", 4));
      at::_validate_sparse_csr_tensor_args(crow, columns, values, shape);
      return at::sparse_csr_tensor(crow, columns, values, shape, values.options().layout(at::kSparseCsr));
    }
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::invalid_argument,
                std::string("a malformed sparse tensor: ") + error.what_without_backtrace());
  }
  unsupported("layout '" + std::string(layout) + "'");
}

at::Tensor decode_plain(const ValueReader& reader, const c10::Device* place) {
  if (reader.kind() != ValueKind::record) reader.mismatch("a tensor");
  const at::ScalarType type = tensor::dtype_from_name(field(reader, "dtype", 0).get_text());
  const std::vector<std::int64_t> shape = read_ints(field(reader, "shape", 1), max_dimensions);
  checked_bytes(shape, c10::elementSize(type));
  ValueReader layout;
  if (reader.find_field("layout", 2, layout)) {
    // Built and checked on the CPU.
    const at::Tensor sparse = decode_sparse(reader, layout.get_text(), type, shape);
    return place != nullptr ? sparse.to(*place) : sparse;
  }

  std::vector<std::int64_t> stored = shape;
  ValueReader expanded;
  const bool expands = reader.find_field("expanded", 3, expanded);
  if (expands)
    for (const std::int64_t d : read_ints(expanded, shape.size())) {
      if (d < 0 || static_cast<std::size_t>(d) >= shape.size())
        throw Error(ErrorKind::invalid_argument, "a tensor of " + std::to_string(shape.size()) +
                                                     " dimensions, expanded along dimension " +
                                                     std::to_string(d));
      stored[static_cast<std::size_t>(d)] = std::min<std::int64_t>(shape[static_cast<std::size_t>(d)], 1);
    }
  const std::vector<std::int64_t> sizes = stored;
  std::vector<std::int64_t> strides;
  if (ValueReader view; reader.find_field("strides", 3, view)) {
    strides = read_ints(view, sizes.size());
    if (strides.size() != sizes.size())
      throw Error(ErrorKind::invalid_argument, "a tensor of " + std::to_string(sizes.size()) +
                                                   " dimensions with " + std::to_string(strides.size()) +
                                                   " strides");
    stored = {span_of(sizes, strides)};
  }
  const std::size_t bytes = checked_bytes(stored, c10::elementSize(type));
  const ValueReader data = field(reader, "data", 2);
  const auto options = at::TensorOptions().dtype(type).device(at::kCPU);
  const auto check = [&](std::size_t found) {
    if (found != bytes)
      throw Error(ErrorKind::invalid_argument, "a tensor of " + std::to_string(bytes) + " bytes with " +
                                                   std::to_string(found) + " bytes of data");
  };
  at::Tensor tensor;
  if (data.kind() == ValueKind::attachment) {
    Buffer buffer = data.get_attachment();
    check(buffer.size());
    void* memory = buffer.data();
    tensor = bytes == 0
                 ? at::empty(stored, options)
                 : at::from_blob(
                       memory, stored, [buffer = std::move(buffer)](void*) mutable { buffer = {}; }, options);
  } else {
    const auto inline_bytes = data.get_bytes();
    check(inline_bytes.size());
    tensor = at::empty(stored, options);
    if (bytes != 0) std::memcpy(tensor.mutable_data_ptr(), inline_bytes.data(), bytes);
  }
  if (place != nullptr) tensor = tensor::to_device(tensor, *place);
  if (!strides.empty()) tensor.as_strided_(sizes, strides);
  ValueReader order;
  if (reader.find_field("order", 3, order)) tensor = laid_out(tensor, read_ints(order, shape.size()));
  return expands ? repeated(std::move(tensor), shape) : tensor;
}

// Decodes a record that names a local device.
at::Tensor decode_placed(const ValueReader& reader, std::string_view name) {
  const c10::Device place = tensor::device_from_name(name);
  const auto* devices = reader.message().slots().find<tensor::IncomingDevices>();
  const auto on_it = [&](const c10::Stream& stream) { return stream.device() == place; };
  if (devices == nullptr || std::none_of(devices->streams.begin(), devices->streams.end(), on_it))
    throw Error(ErrorKind::invalid_argument,
                "a tensor for " + place.str() + ", which the device map of the call does not name");
  const c10::MultiStreamGuard on_streams(devices->streams);
  return decode_plain(reader, &place);
}

}  // namespace

void Codec<at::Tensor>::encode(ValueWriter writer, const at::Tensor& tensor) {
  encode_tensor(writer, tensor, writer.message().is_reply() ? Copy::if_shared : Copy::never);
}

void Codec<tensor::Leaf>::encode(ValueWriter writer, const tensor::Leaf& leaf) {
  encode_tensor(writer, leaf.tensor(), writer.message().is_reply() ? Copy::if_shared : Copy::never, true);
}

tensor::Leaf Codec<tensor::Leaf>::decode(ValueReader reader) {
  return tensor::Leaf(Codec<at::Tensor>::decode(reader));
}

void Codec<tensor::Snapshot>::encode(ValueWriter writer, const tensor::Snapshot& snapshot) {
  encode_tensor(writer, snapshot.tensor(), Copy::always);
}

at::Tensor Codec<at::Tensor>::decode(ValueReader reader) {
  if (reader.is_nil()) return {};
  at::NoGradGuard no_grad;
  if (reader.kind() != ValueKind::record) reader.mismatch("a tensor");
  ValueReader device, mark;
  at::Tensor tensor = reader.find_field("device", 3, device) ? decode_placed(reader, device.get_text())
                                                             : decode_plain(reader);
  if (ValueReader grad; reader.find_field("requires_grad", 3, grad) && grad.get_bool()) {
    if (!tensor.is_floating_point() && !tensor.is_complex())
      throw Error(
          ErrorKind::invalid_argument,
          std::string("a tensor of type ") + c10::toString(tensor.scalar_type()) + " that requires grad");
    tensor.set_requires_grad(true);
  }
  if (!reader.find_field("mark", 3, mark)) return tensor;
  auto* hook = reader.message().slots().find<tensor::TensorHook>();
  if (hook == nullptr)
    throw Error(ErrorKind::failed_precondition, "a tensor of a pass, in a message without one");
  return hook->received(std::move(tensor), mark.get_uint());
}

}  // namespace weft::rpc
