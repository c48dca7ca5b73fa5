// Descriptor: owns a file descriptor and closes it. Thread-safety: a value.
#pragma once

#include <unistd.h>

#include <utility>

namespace weft::rpc {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(); }

  explicit operator bool() const { return number_ >= 0; }
  // get(): the number, or -1. release(): returns the number and no longer owns the descriptor. reset():
  // closes the descriptor, and owns `number`.
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }
  void reset(int number = -1) {
    if (const int old = std::exchange(number_, number); old >= 0) ::close(old);
  }

 private:
  int number_ = -1;
};

}  // namespace weft::rpc
