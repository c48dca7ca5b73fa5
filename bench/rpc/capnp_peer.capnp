@0xd4a1b7e0c35f9286;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("weft::bench::schema");

interface Bench {
  echo @0 (value :Int64) -> (value :Int64);
  take @1 (data :Data) -> (size :Int64);
  echoData @2 (data :Data) -> (data :Data);
}
