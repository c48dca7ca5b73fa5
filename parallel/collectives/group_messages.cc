// Operations of a group other than collectives on tensors: messages with tensors, and objects through rank 0.
#include <weft/parallel/collectives/preparation.h>
#include <weft/rpc/core/when_all.h>

#include <ATen/ATen.h>

#include <cstring>

namespace weft::collectives {

rpc::Future<void> Group::send(at::Tensor tensor, int to, std::uint64_t tag, Timeout timeout,
                              Site site) const {
  if (GroupDevices* const devices = core_->devices_for(&tensor))
    return devices->exchange({{PointToPoint::Kind::send, tensor, to, tag}}, timeout, site);
  auto message = rpc::capture([&] {
    check_tensor("send", tensor);
    expect_rank(*core_, to);
    return Message{tag, type_of(tensor), site, bytes_of(flat(tensor)), timeout};
  });
  if (!message.ok()) {
    core_->decline(PointToPoint::Kind::send, to, tag, site, message.error());
    return rpc::Future<void>::made(rpc::Result<void>(message.error()));
  }
  return core_->send(to, std::move(message).get());
}

rpc::Future<int> Group::receive(at::Tensor tensor, std::optional<int> from, std::uint64_t tag,
                                Timeout timeout, const Site& site) const {
  auto output = rpc::capture([&] {
    check_tensor("recv", tensor);
    if (core_->devices_for(&tensor) != nullptr)
      throw rpc::Error(rpc::ErrorKind::unsupported, "recv_any: a tensor on " + tensor.device().str() +
                                                        ": give one of the host's memory, or use recv()");
    if (from) expect_rank(*core_, *from);
    return Output({&tensor, 1});
  });
  if (!output.ok()) {
    core_->decline(PointToPoint::Kind::recv, from, tag, site, output.error());
    return rpc::Future<int>::made(rpc::Result<int>(output.error()));
  }
  note_writes({&tensor, 1});
  const Output memory = std::move(output).get();
  return core_->receive(from, {tag, type_of(tensor), site, bytes_of(memory.memory()), timeout})
      .then([memory](rpc::Result<int>&& sender) {
        if (sender.ok()) memory.write_back();
        return std::move(sender);
      });
}

rpc::Future<void> Group::recv(at::Tensor tensor, int from, std::uint64_t tag, Timeout timeout,
                              Site site) const {
  if (GroupDevices* const devices = core_->devices_for(&tensor))
    return devices->exchange({{PointToPoint::Kind::recv, tensor, from, tag}}, timeout, site);
  return receive(std::move(tensor), from, tag, timeout, site).then([](rpc::Result<int>&& sender) {
    return sender.ok() ? rpc::Result<void>{} : rpc::Result<void>(sender.error());
  });
}

rpc::Future<at::Tensor> Group::recv_tensor(int from, std::uint64_t tag, Timeout timeout, Site site) const {
  const auto refusal = rpc::capture([&] { expect_rank(*core_, from); });
  if (!refusal.ok()) return rpc::Future<at::Tensor>::made(rpc::Result<at::Tensor>(refusal.error()));
  return core_->receive_tensor(from, {tag, {}, site, {}, timeout})
      .then([](rpc::Result<Mailbox::Received>&& received) {
        return rpc::capture([&] {
          Mailbox::Received message = std::move(received).get();
          const auto type = tensor_type_of(message.type, message.bytes.size());
          at::Tensor tensor = at::empty(type->shape, type->dtype);
          if (!message.bytes.empty())
            std::memcpy(data_of(tensor), message.bytes.data(), message.bytes.size());
          return tensor;
        });
      });
}

rpc::Future<int> Group::recv_any(at::Tensor tensor, std::uint64_t tag, Timeout timeout, Site site) const {
  return receive(std::move(tensor), std::nullopt, tag, timeout, site);
}

rpc::Future<void> Group::batch(std::vector<PointToPoint> messages, Timeout timeout, Site site) const {
  if (GroupDevices* const devices = messages.empty() ? nullptr : core_->devices_for(&messages.front().tensor))
    return devices->exchange(std::move(messages), timeout, site);
  std::vector<rpc::Future<void>> all;
  for (PointToPoint& each : messages) {
    const bool sends = each.kind == PointToPoint::Kind::send;
    all.push_back(sends ? send(std::move(each.tensor), each.peer, each.tag, timeout, site)
                        : recv(std::move(each.tensor), each.peer, each.tag, timeout, site));
  }
  return rpc::when_all(std::move(all));
}

void Group::expect_one_a_rank(std::size_t objects, int ranks) {
  if (objects != static_cast<std::size_t>(ranks))
    refuse(std::to_string(objects) + " objects, expected " + std::to_string(ranks) +
           ": give one for each rank");
}

rpc::Future<void> Group::send_packed(const std::string& type, rpc::Buffer object, int to, std::uint64_t tag,
                                     Timeout timeout, const Site& site) const {
  const auto refusal = rpc::capture([&] { expect_rank(*core_, to); });
  if (!refusal.ok()) return rpc::Future<void>::made(rpc::Result<void>(refusal.error()));
  return core_->send(to, Message{tag, type, site, std::move(object), timeout});
}

rpc::Future<rpc::Buffer> Group::receive_packed(const std::string& type, int from, std::uint64_t tag,
                                               Timeout timeout, const Site& site) const {
  const auto refusal = rpc::capture([&] { expect_rank(*core_, from); });
  if (!refusal.ok()) return rpc::Future<rpc::Buffer>::made(rpc::Result<rpc::Buffer>(refusal.error()));
  return core_->receive_any_size(from, {tag, type, site, {}, timeout});
}

rpc::Future<Group::Objects> Group::give(const std::string& meaning, std::optional<int> root,
                                        rpc::Buffer object, bool wants_all, Timeout timeout,
                                        const Site& site) const {
  const auto refusal = rpc::capture([&] {
    if (root) expect_rank(*core_, *root);
  });
  const RoundKey round{core_->reserve_rounds(1)};
  const std::string call = meaning + (root ? ", root " + std::to_string(*root) : "") + ")";
  if (refusal.ok()) return core_->give(round, call, site, std::move(object), wants_all, timeout);
  // The other ranks must not wait for this rank.
  (void)core_->give(round, call + ", refused", site, {}, false, timeout);
  return rpc::Future<Objects>::made(rpc::Result<Objects>(refusal.error()));
}

}  // namespace weft::collectives
