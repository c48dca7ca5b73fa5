// A tensor's metadata: dtype, shape, layout, indices, and the size of its data.
//
// The input is either a frame whose arguments are decoded as tensors, or a description of a record, field by
// field, so that mutations reach every check.
#include <weft/rpc/tensor/tensor_codec.h>

#include <ATen/ATen.h>

#include "tests/fuzz/frames.h"
#include "tests/support/decoders.h"

namespace weft::fuzz {
namespace {

constexpr std::uint8_t made_up = 2;

class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : left_(bytes) {}
  std::size_t small(std::size_t bound) { return static_cast<std::size_t>(next()) % bound; }
  std::int64_t number() {
    switch (small(4)) {
      case 0:
        return static_cast<std::int64_t>(small(5));
      case 1:
        return -static_cast<std::int64_t>(small(3));
      case 2:
        return std::int64_t{1} << small(64);
      default: {
        std::uint64_t value = 0;
        for (int i = 0; i < 8; ++i) value = value << 8 | next();
        return static_cast<std::int64_t>(value);
      }
    }
  }
  std::vector<std::int64_t> numbers() {
    std::vector<std::int64_t> all(small(16) == 0 ? small(100) : small(5));
    for (auto& one : all) one = number();
    return all;
  }

 private:
  std::uint8_t next() {
    if (left_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(left_.front());
    left_ = left_.subspan(1);
    return value;
  }
  std::span<const std::byte> left_;
};

void write_data(rpc::ValueWriter writer, Fields& fields, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(fields.small(4));
  if (fields.small(2) == 0) return writer.set_bytes(bytes);
  writer.set_attachment(rpc::Buffer::copy(bytes));
}

// Mostly consistent fields, up to three levels deep, because a sparse tensor contains tensors.
void write_tensor(rpc::ValueWriter writer, Fields& fields, int depth) {
  static constexpr const char* dtypes[] = {"float32",  "int64", "bool",   "complex64",
                                           "bfloat16", "uint8", "float64"};
  const std::size_t size = std::min<std::size_t>(fields.small(8) * fields.small(16) * 4, 2000);
  const bool sparse = depth < 2 && fields.small(3) == 0;
  if (!sparse) {
    const bool expanded = fields.small(4) == 0;
    const bool ordered = fields.small(4) == 1;
    auto record = writer.set_record(3 + (expanded ? 1 : 0) + (ordered ? 1 : 0));
    record.field(0, "dtype").set_text(dtypes[fields.small(std::size(dtypes))]);
    record.field(1, "shape").set_ints(fields.numbers());
    write_data(record.field(2, "data"), fields, size);
    if (expanded) record.field(3, "expanded").set_ints(fields.numbers());
    if (ordered) record.field(expanded ? 4 : 3, "order").set_ints(fields.numbers());
    return;
  }
  const bool coo = fields.small(2) == 0;
  auto record = writer.set_record(6);
  record.field(0, "dtype").set_text(dtypes[fields.small(std::size(dtypes))]);
  record.field(1, "shape").set_ints(fields.numbers());
  record.field(2, "layout").set_text(coo ? "coo" : "csr");
  write_tensor(record.field(3, coo ? "indices" : "crow"), fields, depth + 1);
  write_tensor(record.field(4, coo ? "values" : "columns"), fields, depth + 1);
  if (coo) {
    record.field(5, "coalesced").set_bool(fields.small(2) == 0);
  } else {
    write_tensor(record.field(5, "values"), fields, depth + 1);
  }
}

// Reads the first and the last element, if the tensor owns the memory.
void look_at(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.layout() == at::kSparse) {
    look_at(tensor._indices());
    return look_at(tensor._values());
  }
  if (tensor.layout() == at::kSparseCsr) {
    look_at(tensor.crow_indices());
    look_at(tensor.col_indices());
    return look_at(tensor.values());
  }
  if (tensor.numel() == 0) return;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* data = static_cast<const volatile std::byte*>(tensor.const_data_ptr());
  (void)data[0];
  (void)data[static_cast<std::size_t>(last + 1) * tensor.element_size() - 1];
  if (static_cast<std::size_t>(last + 1) * tensor.element_size() > tensor.storage().nbytes())
    fail("a tensor larger than its memory");
}

void decode(const rpc::InboundFrame& frame) {
  const rpc::Limits limits = rpc::probe::small_limits();
  try {
    rpc::IncomingMessage message(frame, limits);
    for (std::size_t i = 0; i < std::min<std::size_t>(message.argument_count(), 4); ++i)
      look_at(rpc::Codec<at::Tensor>::decode(message.argument(i)));
  } catch (const rpc::Error& error) {
    switch (error.kind()) {
      case rpc::ErrorKind::protocol_error:
      case rpc::ErrorKind::resource_exhausted:
      case rpc::ErrorKind::type_mismatch:
      case rpc::ErrorKind::unsupported:
      case rpc::ErrorKind::invalid_argument:
      case rpc::ErrorKind::failed_precondition:
        return;
      default:
        fail(std::string("refused with ") + error.what());
    }
  } catch (const std::exception& other) {
    fail(std::string("refused with what is no Error: ") + other.what());
  }
}

void read_stream(const FrameInput& input) {
  rpc::FrameReader reader(rpc::probe::small_limits());
  std::span<const std::byte> bytes = input.stream;
  try {
    while (!bytes.empty()) {
      std::size_t taken = 0;
      for (const auto target : reader.targets()) {
        const std::size_t n = std::min(target.size(), bytes.size());
        std::copy_n(bytes.begin(), n, target.begin());
        bytes = bytes.subspan(n);
        taken += n;
      }
      reader.advance(taken);
      while (auto frame = reader.next()) decode(*frame);
    }
  } catch (const rpc::Error&) {
  }
}

}  // namespace

Corpus seeds() {
  Corpus corpus;
  const auto add = [&](const char* name, const at::Tensor& tensor) {
    auto message = rpc::OutgoingMessage::request(1);
    rpc::Codec<at::Tensor>::encode(message->argument(0), tensor);
    corpus[name] = input({FrameInput::resealed, 0}, rpc::probe::sealed(std::move(message), "probe.echo", 1));
  };
  const at::Tensor matrix = at::arange(12, at::kFloat).reshape({3, 4});
  add("dense", matrix);
  add("scalar", at::scalar_tensor(1.5));
  add("empty", at::empty({0, 3}));
  add("expanded", at::ones({1, 4}).expand({1000, 4}));
  add("attached", at::zeros({300}));
  add("complex", at::ones({2, 2}, at::kComplexFloat));
  add("coo", at::eye(3).to_sparse());
  add("csr", at::eye(3).to_sparse_csr());
  add("undefined", {});
  for (std::uint8_t i = 0; i < 8; ++i) {
    std::vector<std::uint8_t> bytes{made_up, 0, 3, 4, i, 0, 1, 2};
    for (std::uint8_t j = 0; j < 40; ++j) bytes.push_back(static_cast<std::uint8_t>(i * 37 + j * (i + 1)));
    corpus["made_up" + std::to_string(i)] = std::move(bytes);
  }
  return corpus;
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  const fuzz::FrameInput input(data, size);
  if ((input.how & fuzz::made_up) == 0) {
    fuzz::read_stream(input);
    return 0;
  }
  fuzz::Fields fields(input.stream);
  auto message = rpc::OutgoingMessage::request(1);
  fuzz::write_tensor(message->argument(0), fields, 0);
  fuzz::decode(test::inbound(message->seal_request({1, 2, 0}, 3, 0), rpc::probe::small_limits()));
  return 0;
}
