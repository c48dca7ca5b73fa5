#include <weft/rpc/testing/simulation/sim_stream.h>

#include <weft/rpc/testing/simulation/internal/sim_wire.h>

namespace weft::test {

class SimStream::Bulk final : public rpc::BulkAccess {
 public:
  Bulk(std::shared_ptr<SimWire> wire, std::size_t side) : wire_(std::move(wire)), side_(side) {}
  rpc::BulkRange range() const override { return *wire_->bulk(); }
  void pull(std::uint64_t address, std::span<std::byte> into, std::error_code& error) override {
    wire_->pull(side_, address, into, error);
  }
  void acknowledge() override { wire_->acknowledge(side_); }
  std::uint64_t acknowledged() const override { return wire_->acknowledged(side_); }
  void when_acknowledged(rpc::Callback job) override {
    wire_->when(side_, SimWire::Event::acknowledged, std::move(job));
  }

 private:
  const std::shared_ptr<SimWire> wire_;
  const std::size_t side_;
};

SimStream::SimStream(std::shared_ptr<SimWire> wire, std::size_t side)
    : wire_(std::move(wire)),
      side_(side),
      bulk_(wire_->bulk() ? std::make_unique<Bulk>(wire_, side) : nullptr) {}
SimStream::~SimStream() { wire_->close(side_); }

std::size_t SimStream::read(std::span<const std::span<std::byte>> into, std::error_code& error) {
  return wire_->read(side_, into, error);
}
std::size_t SimStream::write(std::span<const std::span<const std::byte>> from, std::error_code& error) {
  return wire_->write(side_, from, error);
}
void SimStream::when_readable(rpc::Callback job) {
  wire_->when(side_, SimWire::Event::readable, std::move(job));
}
void SimStream::when_writable(rpc::Callback job) {
  wire_->when(side_, SimWire::Event::writable, std::move(job));
}
void SimStream::shut_down_writing(std::error_code& error) { wire_->shut_down_writing(side_, error); }
void SimStream::close() { wire_->close(side_); }
std::string SimStream::describe() const { return wire_->describe(side_); }
rpc::BulkAccess* SimStream::bulk() { return bulk_.get(); }
std::string SimStream::identity() const { return "sim:" + wire_->name(1 - side_); }

}  // namespace weft::test
