#include "tools/weft/launch/worker_output.h"

#include <unistd.h>
#include <asio/buffer.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include "tools/weft/launch/process.h"
namespace weft::tool::launch {

using asio::posix::stream_descriptor;
using Block = std::array<char, 1 << 16>;

struct WorkerOutput::Stream {
  Stream(asio::io_context& context, int from, int file, OutputQueue& to)
      : pipe(context, from), to(file), queue(to) {
    pipe.non_blocking(true);
  }
  stream_descriptor pipe;
  const int to;  // the launcher's own file descriptor
  OutputQueue& queue;
  bool paused = false;  // no reads until the bytes that were read before have been written
  LineCutter cutter;
};

WorkerOutput::WorkerOutput(asio::io_context& context, OutputQueue& output, OutputQueue& errors,
                           std::string prefix)
    : context_(context), output_(output), errors_(errors), prefix_(std::move(prefix)) {}

WorkerOutput::~WorkerOutput() = default;

WorkerOutput::Ends WorkerOutput::open_pipes() {
  Ends ends;
  for (const int to : {STDOUT_FILENO, STDERR_FILENO}) {
    Pipe pipe = make_pipe();
    const bool out = to == STDOUT_FILENO;
    streams_.push_back(std::make_unique<Stream>(context_, pipe.read.release(), to, out ? output_ : errors_));
    (out ? ends.out : ends.error) = std::move(pipe.write);
  }
  return ends;
}

void WorkerOutput::begin() {
  for (auto& stream : streams_) await(*stream);
}

void WorkerOutput::await(Stream& stream) {
  stream.pipe.async_wait(stream_descriptor::wait_read, [this, &stream](asio::error_code error) {
    if (error || !stream.pipe.is_open()) return;
    stream.paused = stream.queue.full();
    if (!stream.paused && read(stream)) await(stream);
  });
}

void WorkerOutput::resume() {
  for (auto& stream : streams_)
    if (stream->paused && stream->pipe.is_open() && !stream->queue.full()) {
      stream->paused = false;
      await(*stream);
    }
}

// Reads a part of the stream. false: the stream has ended.
bool WorkerOutput::read(Stream& stream) {
  asio::error_code error;
  Block block;
  const std::size_t bytes = stream.pipe.read_some(asio::buffer(block), error);
  if (error == asio::error::would_block) return true;  // drain() has already read the bytes
  take(stream, {block.data(), bytes});
  if (error) stream.pipe.close();
  return !error;
}

// bytes: empty if the stream has ended.
void WorkerOutput::take(Stream& stream, std::string_view bytes) {
  std::string text;
  const auto add = [&](std::string_view line) {
    if (stream.to == STDERR_FILENO) last_errors_.take(line);
    text += prefix_;
    text += line;
    text += '\n';
  };
  if (bytes.empty())
    stream.cutter.end(add);
  else
    stream.cutter.take(bytes, add);
  stream.queue.add(stream.to, text);
}

void WorkerOutput::drain() {
  for (auto& stream : streams_) {
    asio::error_code error;
    asio::posix::descriptor_base::bytes_readable there;
    if (stream->pipe.is_open()) stream->pipe.io_control(there, error);
    Block block;
    for (std::size_t left = there.get(), bytes; left != 0 && !error; left -= std::min(left, bytes)) {
      bytes = stream->pipe.read_some(asio::buffer(block), error);
      if (bytes != 0) take(*stream, {block.data(), bytes});
    }
    take(*stream, {});
  }
  if (error_file_.empty()) return;
  constexpr off_t tail = 16 << 10;
  const int file = ::open(error_file_.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text(tail, '\0');
  const off_t size = file < 0 ? 0 : ::lseek(file, 0, SEEK_END);
  const ssize_t got =
      size <= 0 ? 0 : ::pread(file, text.data(), text.size(), std::max<off_t>(0, size - tail));
  if (file >= 0) ::close(file);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, got)));
  LineCutter cutter;
  const auto add = [&](std::string_view line) { last_errors_.take(line); };
  cutter.take(text, add);
  cutter.end(add);
}

void WorkerOutput::close() {
  for (auto& stream : streams_) stream->pipe.close();
}

}  // namespace weft::tool::launch
