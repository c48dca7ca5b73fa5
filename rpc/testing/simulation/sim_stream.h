// SimStream: one end of a simulated connection, as a ByteStream.
//
// It moves bytes with delays, in short pieces and within a window, makes occasional spurious calls, and fails
// according to the network's faults or the other end's crash. If its user violates ByteStream's contract, the
// stream reports a violation to its world. Owned by a connection. A stream may outlive its world; then it is
// closed. Thread-safety: none.
#pragma once

#include <weft/rpc/transport/byte_stream.h>

#include <memory>
#include <string>

namespace weft::test {

class SimWire;

class WEFT_EXPORT SimStream final : public rpc::ByteStream {
 public:
  SimStream(std::shared_ptr<SimWire> wire, std::size_t side);
  ~SimStream() override;

  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) override;
  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) override;
  void when_readable(rpc::Callback job) override;
  void when_writable(rpc::Callback job) override;
  void shut_down_writing(std::error_code& error) override;
  void close() override;

  std::string describe() const override;  // "sim anna -> bert #3"
  std::string identity() const override;  // "sim:bert", the other side's process
  rpc::BulkAccess* bulk() override;       // null unless the weather permits bulk

 private:
  class Bulk;
  const std::shared_ptr<SimWire> wire_;
  const std::size_t side_;
  const std::unique_ptr<Bulk> bulk_;
};

}  // namespace weft::test
