// Sockets and memory of the raw peers: system calls and nothing else.
//
// Errors are std::system_error. Thread-safety: none.
#pragma once

#include "bench/rpc/work.h"

#include <sys/uio.h>

#include <utility>

namespace weft::bench {

int checked(long result, const char* what);  // throws if the result is negative

// A connected stream socket. A spinning caller polls for bytes; otherwise the system call blocks.
class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), wait_(other.wait_) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket();
  int descriptor() const { return descriptor_; }
  void set_wait(Wait wait) { wait_ = wait; }

  void write(const void* data, std::size_t size) const;
  void write(iovec* parts, std::size_t count) const;          // modifies the parts
  std::size_t read_some(void* data, std::size_t size) const;  // 0: the other side has closed
  bool read(void* data, std::size_t size) const;  // reads `size` bytes; false: the other side has closed

 private:
  int descriptor_;
  Wait wait_ = Wait::blocking;
};

// Listens on a free port of the loopback, or at a scratch path, and announces the address.
Socket accept_one(Wire wire, ServerEnd& end);
Socket connect_to(Wire wire, const std::string& address);

// Pages of zeros that have not been touched. They are private, or shared with processes that are forked
// later.
class Memory {
 public:
  enum class Kind { own, shared };
  explicit Memory(std::size_t size, Kind kind = Kind::own);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
  char* data() const { return static_cast<char*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_;
  std::size_t size_;
};

}  // namespace weft::bench
