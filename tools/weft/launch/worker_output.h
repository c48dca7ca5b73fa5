// WorkerOutput: passes the output of one worker on to the launcher's own output.
//
// The worker writes to two pipes. This object adds the lines to the queues of the launcher's standard output
// and error, each line with the worker's prefix. While a queue is full, the worker blocks, as it would block
// without the launcher if the reader of its output were slow. Instead of pipes, the worker may write to files
// itself. In both cases the object keeps the last lines of the worker's standard error. Owned by the
// supervisor. Thread-safety: members are called on the thread of the io_context.
#pragma once

#include <weft/rpc/core/descriptor.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include <memory>
#include <string>
#include <vector>

#include "tools/weft/launch/output.h"
#include "tools/weft/launch/output_queue.h"

namespace weft::tool::launch {

class WorkerOutput {
 public:
  // The queues outlive this object.
  WorkerOutput(asio::io_context& context, OutputQueue& output, OutputQueue& errors, std::string prefix);
  ~WorkerOutput();

  // The ends of new pipes that the worker writes to. Throws system_error.
  struct Ends {
    rpc::Descriptor out, error;
  };
  Ends open_pipes();
  // Call it instead of open_pipes(): the worker writes its standard error to this file.
  void use_error_file(std::string path) { error_file_ = std::move(path); }

  void begin();   // begins to read the pipes
  void resume();  // a queue may have room again
  // When the worker has ended, passes on the bytes that are in the pipes. drain() does not wait for more
  // output, because processes that the worker has started may continue to print.
  void drain();
  void close();
  const std::string& last_errors() const { return last_errors_.text(); }

 private:
  struct Stream;
  void await(Stream& stream);
  bool read(Stream& stream);
  void take(Stream& stream, std::string_view bytes);

  asio::io_context& context_;
  OutputQueue& output_;
  OutputQueue& errors_;
  const std::string prefix_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::string error_file_;
  LastLines last_errors_;
};

}  // namespace weft::tool::launch
