# The header of every weft frame (docs/internals/wire_protocol.md). One Header per frame, in Cap'n Proto's stream framing,
# between the 32-byte prefix and the attachments. Fields are only ever added.

@0xe6f1a4a3b0c55d11;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("weft::rpc::schema");

struct Header {
  attachments @0 :List(UInt64);  # bytes of each attachment; each begins at a multiple of 64 in the body

  union {
    none @1 :Void;               # ping, pong, lane, received
    hello @2 :Hello;
    request @3 :Request;
    reply @4 :Reply;
    cancel @5 :Void;             # of the request whose id the prefix carries
    goodbye @6 :Goodbye;
    credit @7 :Credit;
    unusedLane @8 :Void;
    resume @9 :Resume;
  }
}

# Each side sends a Hello at once, and nothing else before it has received the other's.
struct Hello {
  versionMin @0 :UInt16;         # the protocol versions that this side supports
  versionMax @1 :UInt16;
  features @2 :UInt64;           # bits; a feature is active if both sides set it
  name @3 :Text;                 # the agent's name in its job
  incarnation @4 :UInt64;        # of the agent: identifies this start
  addresses @5 :List(Text);      # the addresses on which the agent listens
  mostCalls @6 :UInt32;          # credit: requests in flight that this side accepts; 0: unlimited
  mostBytes @7 :UInt64;          # credit: bytes of these requests; 0: unlimited
  mostHeader @8 :UInt32;         # maximum bytes of one frame's header; 0: not stated
  mostBody @9 :UInt64;           # maximum bytes of its body
  mostAttachments @10 :UInt32;   # maximum number in one frame
  unusedLanes @11 :UInt16;
  unusedLaneKey @12 :Data;
  host @13 :UInt64;              # a hash that is equal for agents of one host and process namespace; 0: unknown
  process @14 :UInt32;           # the number of the agent's process
  started @15 :UInt64;           # the start of that process, in clock ticks of its host
  network @16 :UInt64;           # a hash that is equal for agents of one host and network namespace; 0: unknown
  mostReplies @17 :UInt64;       # bytes of replies in flight that this side accepts; 0: not stated
  lanes @18 :UInt16;             # maximum number of lanes of this connection
  laneKey @19 :UInt64;           # of a lane: the key that was offered for it plus its number; 0: not a lane
}

# The agent with the smaller id (name, then incarnation) states the connection that the session uses; the other agent
# answers on the same connection. The other agent may also ask for a connection (docs/internals/wire_protocol.md,
# "Sessions").
struct Resume {
  session @0 :UInt64;            # the number of the session; 0: in an answer, the session is unknown
  epoch @1 :UInt64;              # grows with each choice of a connection
  accepted @2 :UInt64;           # the number of numbered frames that the sender has accepted in this session
  isNew @3 :Bool;                # the sender has just made this session
}

# Returns the credit of notifications, which have no reply.
struct Credit {
  calls @0 :UInt32;
  bytes @1 :UInt64;
}

# The sender sends no new requests, and closes the connection when the calls in flight have completed.
struct Goodbye {
  kind @0 :UInt16;               # ErrorKind; 0: no error
  message @1 :Text;
}

struct Request {
  method @0 :UInt64;             # hash of the method's name
  signature @1 :UInt64;          # hash of the caller's canonical signature
  arguments @2 :List(Value);
  sections @3 :List(Section);
  timeout @4 :UInt64;            # remaining nanoseconds until the deadline; 0: none
  attempt @5 :UInt16;            # the number of earlier attempts of this call
  accepted @6 :UInt32;           # the low bits of the number of numbered frames that the caller has accepted
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
  type @4 :Text;                 # the C++ type of the exception, if it was not an Error
  notRun @5 :Bool;               # the handler did not start
  payloadType @6 :Text;          # the type of a value that accompanies the error; empty: no value
  payload @7 :Data;              # the value, packed (docs/internals/wire_protocol.md, "Payloads of errors")
}

# The data of a layer above RPC. A receiver ignores an unknown section, unless it is required.
struct Section {
  key @0 :Text;
  required @1 :Bool;
  value @2 :Value;
}

# A self-describing value.
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
    attachment @11 :UInt32;      # the index of an attachment that contains the bytes
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
