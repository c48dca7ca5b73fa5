# The header of every weft frame (docs/wire_protocol.md). One Header per frame, in Cap'n Proto's stream framing,
# between the 32-byte prefix and the attachments. Fields are only ever added.

@0xe6f1a4a3b0c55d11;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("weft::rpc::schema");

struct Header {
  attachments @0 :List(UInt64);  # bytes of each attachment; each begins at a multiple of 64 in the body

  union {
    none @1 :Void;               # ping, pong, received, resume
    hello @2 :Hello;
    request @3 :Request;
    reply @4 :Reply;
    cancel @5 :Void;             # of the request whose id the prefix carries
    goodbye @6 :Goodbye;
    credit @7 :Credit;
    lane @8 :Lane;
  }
}

# Both sides send a Hello at once, and nothing else before they have the other's.
struct Hello {
  versionMin @0 :UInt16;         # the protocol versions that this side speaks
  versionMax @1 :UInt16;
  features @2 :UInt64;           # bits; those that both sides set are in force
  name @3 :Text;                 # the agent's name in its job
  incarnation @4 :UInt64;        # which incarnation of that name
  addresses @5 :List(Text);      # where the agent listens
  mostCalls @6 :UInt32;          # credit: requests that this side takes at a time; 0: it does not count them
  mostBytes @7 :UInt64;          # credit: bytes of requests that it takes at a time; 0: it does not count them
  mostHeader @8 :UInt32;         # bytes of one frame's header that this side takes; 0: it does not say
  mostBody @9 :UInt64;           # and of its body
  mostAttachments @10 :UInt32;   # of one frame
  lanes @11 :UInt16;             # connections beside this one that the side uses for bulk at the most
  laneKey @12 :Data;             # by which the peer's lanes prove to belong to this connection
  host @13 :UInt64;              # a hash that agents of one host and process namespace share; 0: unknown
  process @14 :UInt32;           # the agent's process there
  started @15 :UInt64;           # when that process started, in the clock ticks of its host
}

# A connection that becomes a lane of another, or how far that has come (docs/wire_protocol.md, "Lanes").
struct Lane {
  key @0 :Data;
  index @1 :UInt16;
  count @2 :UInt16;
}

# Credit that notifications have given back, since no reply does.
struct Credit {
  calls @0 :UInt32;
  bytes @1 :UInt64;
}

# The sender will send no new requests and closes when what is under way has ended.
struct Goodbye {
  kind @0 :UInt16;               # ErrorKind; 0: nothing is wrong
  message @1 :Text;
}

struct Request {
  method @0 :UInt64;             # hash of the method's name
  signature @1 :UInt64;          # hash of the caller's canonical signature
  arguments @2 :List(Value);
  sections @3 :List(Section);
  timeout @4 :UInt64;            # remaining nanoseconds until the deadline; 0: none
  attempt @5 :UInt16;            # how often this call was tried before
  accepted @6 :UInt32;           # resumable frames that the sender of a resumable request has accepted: low bits
}

struct Reply {
  union {
    value @0 :Value;
    error @1 :Failure;
  }
  sections @2 :List(Section);
}

struct Failure {
  kind @0 :UInt16;               # ErrorKind
  message @1 :Text;
  worker @2 :Text;
  method @3 :Text;
  type @4 :Text;                 # C++ type of the exception, where it was not an Error
  notRun @5 :Bool;               # the handler never began
  payloadType @6 :Text;          # of a value that accompanies the error: its type; empty: there is none
  payload @7 :Data;              # the value, packed (docs/wire_protocol.md, "Payloads of errors")
}

# What layers above RPC put beside a message. An unknown section is ignored unless it is marked required.
struct Section {
  key @0 :Text;
  required @1 :Bool;
  value @2 :Value;
}

# A value that describes itself.
struct Value {
  union {
    nil @0 :Void;
    boolean @1 :Bool;
    int @2 :Int64;
    uint @3 :UInt64;
    real @4 :Float64;
    text @5 :Text;
    bytes @6 :Data;
    list @7 :List(Value);        # sequences and tuples
    record @8 :List(Field);      # structs: fields by name
    map @9 :List(Entry);
    variant @10 :Variant;
    attachment @11 :UInt32;      # bytes that travel as this attachment
    object @12 :Object;          # a Cap'n Proto struct
    ints @13 :List(Int64);       # sequences of numbers, packed
    reals @14 :List(Float64);
    floats @15 :List(Float32);
  }
}

struct Field {
  name @0 :Text;
  value @1 :Value;
}

struct Entry {
  key @0 :Value;
  value @1 :Value;
}

struct Variant {
  index @0 :UInt16;
  value @1 :Value;
}

struct Object {
  type @0 :UInt64;               # the schema node's id
  content @1 :AnyPointer;
}
