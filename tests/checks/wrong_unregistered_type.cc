// A parameter of a type that does not travel: it has no Codec.
// expect: weft: values of this type cannot be sent: it has no Codec (WEFT_CODEC defines one)
#include <weft/rpc/rpc.h>

struct Quote {
  std::string symbol;
  double price = 0;
};

struct Exchange {
  void list(Quote) {}
  double price(std::string) const { return 0; }
  using Service = weft::rpc::Service<"exchange",                                  //
                                     weft::rpc::Method<"list", &Exchange::list>,  // mistake
                                     weft::rpc::Method<"price", &Exchange::price>>;
};

void serve(weft::rpc::Agent& agent) { agent.serve(std::make_shared<Exchange>()); }
