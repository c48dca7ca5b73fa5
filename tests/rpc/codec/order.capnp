# A user's own Cap'n Proto types, for capnp_codec_test.cc.
@0xd3a4e1f7c2b59860;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("weft::test::schema");

struct Order {
  symbol @0 :Text;
  amount @1 :Int32;
  fills @2 :List(Fill);
  struct Fill {
    price @0 :Float64;
  }
}

struct Receipt {
  number @0 :UInt64;
}
