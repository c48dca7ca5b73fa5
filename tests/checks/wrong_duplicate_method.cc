// Two methods of one service under the same name.
// expect: weft: two methods of this service have the same name
#include <weft/rpc/rpc.h>

struct Greeter {
  std::string greet(std::string name) const { return "hello " + name; }
  std::string part(std::string name) const { return "good-bye " + name; }
  using Service = weft::rpc::Service<"greeter",                                   //
                                     weft::rpc::Method<"greet", &Greeter::part>,  // mistake
                                     weft::rpc::Method<"greet", &Greeter::greet>>;
};

void serve(weft::rpc::Agent& agent) { agent.serve(std::make_shared<Greeter>()); }
