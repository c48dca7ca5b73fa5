// Shared by the tests of the simulation: programs that write and read streams, as processes do.
#pragma once

#include <weft/rpc/testing/simulation/sim_world.h>

#include <asio/error.hpp>

#include <array>
#include <memory>
#include <string>

namespace weft::test {

inline std::string some_text(SimRandom& random, std::size_t size) {
  std::string text(size, ' ');
  for (char& c : text) c = static_cast<char>('a' + random.below(26));
  return text;
}

// Writes a text as the stream accepts it, then ends its direction or closes.
class TextWriter : public std::enable_shared_from_this<TextWriter> {
 public:
  enum class Then { stay, end, close };
  TextWriter(std::shared_ptr<rpc::ByteStream> stream, std::string text, Then then)
      : stream_(std::move(stream)), text_(std::move(text)), then_(then) {}

  void go() {
    while (written_ != text_.size()) {
      // In two spans, where there is enough.
      const auto bytes = std::as_bytes(std::span(text_)).subspan(written_);
      const std::size_t half = bytes.size() / 2;
      const std::array<std::span<const std::byte>, 2> both{bytes.first(half), bytes.subspan(half)};
      const auto parts = std::span(both).subspan(half == 0 ? 1 : 0);
      const std::size_t n = stream_->write(parts, error);
      written_ += n;
      if (error == asio::error::would_block) {
        ++blocked;
        return stream_->when_writable([self = shared_from_this()] { self->go(); });
      }
      if (error) return;
    }
    if (then_ == Then::end) stream_->shut_down_writing(error);
    if (then_ == Then::close) stream_->close();
  }
  std::size_t written() const { return written_; }

  std::error_code error;
  std::size_t blocked = 0;  // how often write() would have blocked

 private:
  std::shared_ptr<rpc::ByteStream> stream_;
  std::string text_;
  Then then_;
  std::size_t written_ = 0;
};

// Reads until the stream ends or fails.
class TextReader : public std::enable_shared_from_this<TextReader> {
 public:
  explicit TextReader(std::shared_ptr<rpc::ByteStream> stream) : stream_(std::move(stream)) {}

  void go() {
    for (;;) {
      std::array<std::byte, 100> some;
      std::array<std::byte, 1000> more;
      const std::array<std::span<std::byte>, 2> into{std::span(some), std::span(more)};
      const std::size_t n = stream_->read(into, error);
      for (std::size_t i = 0; i < n; ++i)
        text += static_cast<char>(i < some.size() ? some[i] : more[i - some.size()]);
      if (error == asio::error::would_block)
        return stream_->when_readable([self = shared_from_this()] { self->go(); });
      if (error) return;
    }
  }

  std::string text;
  std::error_code error;  // asio::error::eof, or what broke the stream

 private:
  std::shared_ptr<rpc::ByteStream> stream_;
};

// Two processes with a loop each, and a stream between them.
struct Pair {
  explicit Pair(SimWorld& w)
      : world(w),
        anna(w.start("anna")),
        bert(w.start("bert")),
        anna_loop(anna.make_loop()),
        bert_loop(bert.make_loop()) {
    auto [one, other] = world.network().make_pair(anna_loop, bert_loop);
    at_anna = std::move(one);
    at_bert = std::move(other);
  }

  std::shared_ptr<TextWriter> write(std::string text, TextWriter::Then then) {
    auto writer = std::make_shared<TextWriter>(at_anna, std::move(text), then);
    anna_loop->post([writer] { writer->go(); });
    return writer;
  }
  std::shared_ptr<TextReader> read(bool at_other = true) {
    auto reader = std::make_shared<TextReader>(at_other ? at_bert : at_anna);
    (at_other ? bert_loop : anna_loop)->post([reader] { reader->go(); });
    return reader;
  }

  SimWorld& world;
  SimProcess& anna;
  SimProcess& bert;
  std::shared_ptr<SimLoop> anna_loop, bert_loop;
  std::shared_ptr<rpc::ByteStream> at_anna, at_bert;
};

}  // namespace weft::test
