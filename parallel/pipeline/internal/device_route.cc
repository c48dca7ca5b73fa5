#include <weft/parallel/pipeline/internal/device_route.h>

#include <weft/parallel/pipeline/internal/ties.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/when_all.h>

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <set>
#include <utility>

namespace weft::pipeline {

using collectives::PointToPoint;
using rpc::Error;
using rpc::ErrorKind;

namespace {

constexpr int sender = 0, receiver = 1;  // ranks of a route's group
constexpr std::int8_t not_on_device = -1;

struct DeviceHeader {
  std::int32_t microbatch = -1;
  SentValues values;  // those of the device are undefined
  // By value: the form of each tensor that follows.
  std::vector<std::int8_t> dtypes;
  std::vector<std::vector<std::int64_t>> sizes;
};
WEFT_CODEC(DeviceHeader, microbatch, values, dtypes, sizes)

// Allocates the tensors of the header, for the current stream. Throws for a header that no sender creates.
std::vector<PointToPoint> allocate(DeviceHeader& header, c10::Device device) {
  Values& values = header.values.values;
  if (!header.values.has(header.dtypes.size()) || header.sizes.size() != header.dtypes.size())
    throw Error(ErrorKind::invalid_argument,
                "the header of a value on a device has " + std::to_string(values.size()) + " values, " +
                    std::to_string(header.values.requires_grad.size()) + " flags, " +
                    std::to_string(header.dtypes.size()) + " types and " +
                    std::to_string(header.sizes.size()) + " sizes, expected equal numbers");
  std::vector<PointToPoint> messages;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (header.dtypes[i] == not_on_device) continue;
    values[i] = at::empty(header.sizes[i],
                          at::TensorOptions(static_cast<at::ScalarType>(header.dtypes[i])).device(device));
    if (values[i].numel() > 0)
      messages.push_back({PointToPoint::Kind::recv, values[i].view({-1}), sender, /*tag=*/0});
  }
  return messages;
}

// Notes that the stream uses the tensor: the allocator reuses its memory only after the work that the stream
// has now.
void note_use(const at::Tensor& tensor, const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

std::set<RouteKey> routes_of(const StageGraph& graph, const schedule::Schedule& schedule) {
  std::set<RouteKey> routes;
  const auto add = [&](const ValueExchange::Key& key) {
    const int from = schedule.rank_of(key.from(), key.microbatch);
    const int to = schedule.rank_of(key.to(), key.microbatch);
    if (from != to) routes.insert({key.edge, key.gradient, from, to});
  };
  for (const schedule::Edge& edge : schedule.edges)
    for (int microbatch = 0; microbatch < schedule.microbatches; ++microbatch)
      for (const bool gradient : {false, true}) add({edge, microbatch, gradient});
  for (const ValueExchange::Key& message : tie_messages(graph, schedule)) add(message);
  return routes;
}

std::string name_of(const RouteKey& route) {
  return (route.gradient ? "gradients of stage " + std::to_string(route.edge.to) + " for "
                         : "outputs of stage " + std::to_string(route.edge.from) + " for ") +
         std::to_string(route.gradient ? route.edge.from : route.edge.to);
}

}  // namespace

DeviceRoute::DeviceRoute(collectives::Group pair, c10::Device device)
    : pair_(std::move(pair)), device_(device), communication_(device) {}

rpc::Future<void> DeviceRoute::send(int microbatch, const Values& values) {
  DeviceHeader header{.microbatch = microbatch};
  Values in_header;
  std::vector<PointToPoint> messages;
  for (const at::Tensor& value : values) {
    const bool follows = value.defined() && value.device() == device_ && value.layout() == at::kStrided;
    in_header.push_back(follows ? at::Tensor() : value);
    header.dtypes.push_back(follows ? static_cast<std::int8_t>(value.scalar_type()) : not_on_device);
    header.sizes.push_back(follows ? value.sizes().vec() : std::vector<std::int64_t>());
    if (follows && value.numel() > 0)
      messages.push_back(
          {PointToPoint::Kind::send, value.detach().contiguous().view({-1}), receiver, /*tag=*/0});
  }
  header.values = SentValues::of(in_header);
  for (std::size_t i = 0; i < values.size(); ++i)
    header.values.requires_grad[i] = values[i].defined() && values[i].requires_grad();
  auto sent = pair_.send_object(header, receiver, 0, no_timeout);
  if (messages.empty()) return sent;
  const auto written = training::CommunicationStream::written(device_);
  return communication_.run([&] {
    communication_.follow(*written);
    return pair_.batch(std::move(messages), no_timeout);
  });
}

void DeviceRoute::receive(c10::Stream reader, Arrived arrived) {
  pair_.recv_object<DeviceHeader>(sender, 0, no_timeout)
      .then([self = shared_from_this(), reader,
             arrived = std::move(arrived)](rpc::Result<DeviceHeader>&& came) mutable {
        if (!came.ok()) return arrived(came.error());
        DeviceHeader header = std::move(came).get();
        auto received = rpc::capture([&] {
          return self->communication_.run([&] {
            auto messages = allocate(header, self->device_);
            return messages.empty() ? rpc::Future<void>::made(rpc::Result<void>())
                                    : self->pair_.batch(std::move(messages), no_timeout);
          });
        });
        if (!received.ok()) return arrived(received.error());
        std::move(received).get().then([reader, header = std::move(header),
                                        arrived = std::move(arrived)](rpc::Result<void>&& done) mutable {
          if (!done.ok()) return arrived(done.error());
          for (std::size_t i = 0; i < header.dtypes.size(); ++i)
            if (header.dtypes[i] != not_on_device) note_use(header.values.values[i], reader);
          arrived(Arrival{header.microbatch, std::move(header.values)});
        });
      });
}

DeviceRoutes device_routes(const collectives::Group& group, const StageGraph& graph,
                           const schedule::Schedule& schedule, c10::Device device,
                           std::chrono::nanoseconds timeout) {
  if (!device.is_cpu() && !device.has_index())
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  const auto types = group.all_gather_object(static_cast<std::int8_t>(device.type()), timeout).get();
  DeviceRoutes routes;
  std::vector<rpc::Future<void>> prepared;
  for (const RouteKey& key : routes_of(graph, schedule)) {
    const std::int8_t type = types[static_cast<std::size_t>(key.from)];
    if (type == static_cast<std::int8_t>(at::kCPU) || type != types[static_cast<std::size_t>(key.to)])
      continue;
    const bool is_own = key.from == group.rank() || key.to == group.rank();
    collectives::GroupOptions options = group.options();
    options.name = group.name() + ", " + name_of(key);
    const auto pair = group
                          .split(is_own ? std::optional(0) : std::nullopt,
                                 key.to == group.rank() ? receiver : sender, options)
                          .get();
    if (!is_own) continue;
    prepared.push_back(pair->prepare(device, timeout));
    routes.emplace(key, std::make_shared<DeviceRoute>(*pair, device));
  }
  std::string trouble;
  try {
    rpc::when_all(std::move(prepared)).get();
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  for (const std::string& each : group.all_gather_object(trouble, timeout).get())
    if (!each.empty())
      throw Error(ErrorKind::unsupported, "GroupPipeline: " + each +
                                              ": expected NCCL between the ranks' devices; without it, set "
                                              "GroupPipelineOptions::values_through_host");
  return routes;
}

}  // namespace weft::pipeline
