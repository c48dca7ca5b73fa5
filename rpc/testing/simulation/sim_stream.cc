#include <weft/rpc/testing/simulation/sim_stream.h>

#include <weft/rpc/testing/simulation/internal/sim_wire.h>

namespace weft::test {

SimStream::SimStream(std::shared_ptr<SimWire> wire, std::size_t side) : wire_(std::move(wire)), side_(side) {}
SimStream::~SimStream() { wire_->close(side_); }

std::size_t SimStream::read(std::span<const std::span<std::byte>> into, std::error_code& error) {
  return wire_->read(side_, into, error);
}
std::size_t SimStream::write(std::span<const std::span<const std::byte>> from, std::error_code& error) {
  return wire_->write(side_, from, error);
}
void SimStream::when_readable(rpc::Job job) { wire_->when(side_, false, std::move(job)); }
void SimStream::when_writable(rpc::Job job) { wire_->when(side_, true, std::move(job)); }
void SimStream::shut_down_writing(std::error_code& error) { wire_->shut_down_writing(side_, error); }
void SimStream::close() { wire_->close(side_); }
std::string SimStream::describe() const { return wire_->describe(side_); }
std::string SimStream::identity() const { return "sim:" + wire_->name(1 - side_); }

}  // namespace weft::test
