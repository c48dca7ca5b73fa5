// StripedStream: the bytes of a connection over its stream and its lanes, which are further flows of the
// network.
//
// Both directions are divided into blocks, counted from the first byte of the connection. All blocks are on
// the connection's own stream until stripe_reads() or stripe_writes(). After the current block, block b is on
// stream b mod n. Blocks are moved in their order; the buffers of the system let the streams run ahead.
#pragma once

#include <weft/rpc/transport/byte_stream.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

namespace weft::rpc {

class StripedStream final : public ByteStream {
 public:
  static constexpr std::uint64_t block = std::uint64_t{32} << 10;  // bytes; part of the wire protocol

  // streams: the connection's own one, then its lanes. read, written: the bytes of the connection so far.
  StripedStream(std::vector<std::unique_ptr<ByteStream>> streams, std::uint64_t read, std::uint64_t written)
      : streams_(std::move(streams)), in_{read}, out_{written} {}

  // Return false if that direction is striped already.
  bool stripe_reads() { return stripe(in_); }
  bool stripe_writes() { return stripe(out_); }

  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) override {
    return move(in_, into, &ByteStream::read, error);
  }
  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) override {
    return move(out_, from, &ByteStream::write, error);
  }
  void when_readable(Callback job) override { next(in_).when_readable(std::move(job)); }
  void when_writable(Callback job) override { next(out_).when_writable(std::move(job)); }
  void shut_down_writing(std::error_code& error) override {
    for (const auto& stream : streams_) {
      std::error_code failed;
      stream->shut_down_writing(failed);
      // A lane that carries nothing may have been lost.
      if (failed && !error && (stream == streams_.front() || out_.first_striped != never)) error = failed;
    }
  }
  void close() override {
    for (const auto& stream : streams_) stream->close();
  }
  std::string describe() const override { return streams_.front()->describe(); }
  std::string identity() const override { return streams_.front()->identity(); }
  std::string explain(const std::error_code& error) const override {
    return streams_.front()->explain(error);
  }
  std::optional<HostPair> hosts() const override { return streams_.front()->hosts(); }

 private:
  static constexpr auto never = std::numeric_limits<std::uint64_t>::max();
  struct Way {                            // one direction
    std::uint64_t at;                     // the position of its next byte
    std::uint64_t first_striped = never;  // a position
  };
  static bool stripe(Way& way) {
    if (way.first_striped != never) return false;
    way.first_striped = (way.at + block - 1) / block * block;
    return true;
  }
  ByteStream& next(const Way& way) const {
    return *streams_[way.at < way.first_striped ? 0 : way.at / block % streams_.size()];
  }
  template <class Byte, class Move>
  std::size_t move(Way& way, std::span<const std::span<Byte>> spans, Move move, std::error_code& error) {
    const std::uint64_t begin = way.at;
    std::vector<std::span<Byte>> pieces;  // of one block
    // Not more than 64 blocks a call, so that other work on the loop runs.
    for (std::size_t done = 0; !spans.empty() && way.at - begin < 64 * block;) {
      std::size_t room = block - way.at % block;
      pieces.clear();
      for (std::size_t i = 0, skip = done; room != 0 && i < spans.size(); ++i, skip = 0) {
        pieces.push_back(spans[i].subspan(skip, std::min(spans[i].size() - skip, room)));
        room -= pieces.back().size();
      }
      const std::size_t bytes = (next(way).*move)(pieces, error);
      way.at += bytes;
      for (done += bytes; !spans.empty() && done >= spans.front().size(); spans = spans.subspan(1))
        done -= spans.front().size();
      // Before the first striped block, the caller may stripe the next one.
      if (bytes == 0 || way.at % block != 0 || way.at < way.first_striped) break;
    }
    if (way.at != begin) error.clear();
    return way.at - begin;
  }

  const std::vector<std::unique_ptr<ByteStream>> streams_;
  Way in_, out_;
};

}  // namespace weft::rpc
