// The service that peers may call: a class, and its methods under permanent names.
#pragma once

#include <weft/rpc/rpc.h>

#include <string>

struct Greeter {
  std::string greet(std::string name) const { return "hello, " + name; }
  using Service = weft::rpc::Service<"greeter", weft::rpc::Method<"greet", &Greeter::greet>>;
};
