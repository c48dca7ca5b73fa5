// The lower bound for a tensor that is sent to another process of the host, including header and
// acknowledgement: the best of three ways. The receiver's memory has been touched before and is reused.
//   spin    The header is a cache line on which the receiver spins. The receiver fetches the tensor from
//           the sender's memory (process_vm_readv) and acknowledges it in another cache line.
//   socket  The same, but header and acknowledgement are messages over a Unix socket, with the sizes of
//           weft's messages. A waiting process blocks.
//   ring    The tensor is copied twice, through slots of shared memory. Sender and receiver overlap.
// A way that the system forbids is skipped.
#include "bench/rpc/socket.h"
#include "bench/rpc/turn.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace weft::bench {
namespace {

constexpr std::size_t slot_bytes = 256 << 10;  // a few fit into the second-level cache
constexpr std::size_t slots = 4;

// The address of a tensor in its sender.
struct Header {
  std::uint64_t call = 0, address = 0, bytes = 0;
  pid_t sender = 0;  // 0: no further tensor follows
};
// The receiver's message: the number of the call whose tensor has arrived, or the end.
struct Acknowledgement {
  std::uint64_t call = 0, last_word = 0;
};

struct alignas(64) HeaderLine {
  Turn turn;
  Header header;
};
struct alignas(64) AcknowledgementLine {
  Turn turn;
  Acknowledgement text;
};
struct Lines {
  HeaderLine header;
  AcknowledgementLine acknowledgement;
  // For `ring`: how many slots have been filled and emptied since the start.
  alignas(64) Turn filled;
  alignas(64) Turn emptied;
};

std::uint64_t last_word(const char* tensor, std::size_t bytes) {
  std::uint64_t word;
  std::memcpy(&word, tensor + bytes - sizeof word, sizeof word);
  return word;
}

// The system decides which processes may read this process's memory, and may require the permission of this
// process. This function permits all processes.
void permit_reading() { prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); }

void fetch(const Header& header, const Memory& into) {
  for (std::size_t done = 0; done < header.bytes;) {
    const iovec local{into.data() + done, header.bytes - done};
    const iovec remote{reinterpret_cast<void*>(header.address + done), header.bytes - done};
    const ssize_t n = process_vm_readv(header.sender, &local, 1, &remote, 1, 0);
    checked(n, "process_vm_readv");
    done += static_cast<std::size_t>(n);
  }
}

// A sender's tensor. Its last word differs for each call.
class Tensor {
 public:
  explicit Tensor(std::size_t bytes) : memory_(bytes) { std::memset(memory_.data(), 1, bytes); }
  const char* data() const { return memory_.data(); }
  std::size_t size() const { return memory_.size(); }
  void change(std::uint64_t word) { std::memcpy(memory_.data() + size() - sizeof word, &word, sizeof word); }
  Header header(std::uint64_t call) const {
    return {call, reinterpret_cast<std::uintptr_t>(data()), size(), getpid()};
  }

 private:
  Memory memory_;
};

// Calls send() until the measurement has lasted long enough. send() returns the receiver's answer.
template <class Send>
Figures send_tensors(std::size_t bytes, const Budget& budget, Send send) {
  Tensor tensor(bytes);
  RateMeter meter(budget);
  std::uint64_t call = 0;
  do {
    tensor.change(~++call);
    const Acknowledgement said = send(tensor, call);
    expect_answer(said.call == call && said.last_word == ~call);
  } while (meter.count(1));
  return meter.bandwidth(bytes);
}

// --- Headers in cache lines of shared memory. The receiver fetches the tensor by `take`. ---

template <class Take>
void serve_lines(Lines& lines, Wait wait, std::size_t bytes, ServerEnd& end, Take take) {
  const Memory memory(bytes);
  std::memset(memory.data(), 0, bytes);
  end.announce("memory");
  for (std::uint32_t call = 1;; ++call) {
    lines.header.turn.await(call, wait);
    const Header header = lines.header.header;
    if (header.sender == 0) break;
    take(header, memory);
    lines.acknowledgement.text = {header.call, last_word(memory.data(), bytes)};
    lines.acknowledgement.turn.advance(call, wait);
  }
  end.wait_for_client();
}

template <class Give>
void measure_lines(Lines& lines, Wait wait, std::size_t bytes, ClientEnd& end, Give give) {
  std::uint32_t turn = 0;
  const auto say = [&](const Header& header) {
    lines.header.header = header;
    lines.header.turn.advance(++turn, wait);
  };
  const Figures figures = send_tensors(bytes, end.budget(), [&](const Tensor& tensor, std::uint64_t call) {
    say(tensor.header(call));
    give(tensor);
    lines.acknowledgement.turn.await(turn, wait);
    return lines.acknowledgement.text;
  });
  say({});
  end.report(figures);
}

Outcome by_spinning(std::size_t bytes, const Setting& setting) {
  const Memory memory(sizeof(Lines), Memory::Kind::shared);
  auto& lines = *new (memory.data()) Lines;
  return measure_pair(
      {.serve = [&](ServerEnd& end) { serve_lines(lines, Wait::spinning, bytes, end, fetch); },
       .measure =
           [&](ClientEnd& end) {
             permit_reading();
             measure_lines(lines, Wait::spinning, bytes, end, [](const Tensor&) {});
           }},
      setting);
}

// --- Through a ring of slots. ---

Outcome by_ring(std::size_t bytes, Wait wait, const Setting& setting) {
  const Memory memory(sizeof(Lines), Memory::Kind::shared), ring(slots * slot_bytes, Memory::Kind::shared);
  std::memset(ring.data(), 0, ring.size());  // touches all pages
  auto& lines = *new (memory.data()) Lines;
  const auto slot = [&](std::uint32_t number) { return ring.data() + number % slots * slot_bytes; };
  return measure_pair(
      {.serve =
           [&](ServerEnd& end) {
             std::uint32_t number = 0;
             serve_lines(lines, wait, bytes, end, [&](const Header& header, const Memory& into) {
               for (std::size_t done = 0; done < header.bytes; done += slot_bytes) {
                 lines.filled.await(number + 1, wait);
                 std::memcpy(into.data() + done, slot(number), std::min(slot_bytes, header.bytes - done));
                 lines.emptied.advance(++number, wait);
               }
             });
           },
       .measure =
           [&](ClientEnd& end) {
             std::uint32_t number = 0;
             measure_lines(lines, wait, bytes, end, [&](const Tensor& tensor) {
               for (std::size_t done = 0; done < tensor.size(); done += slot_bytes) {
                 lines.emptied.await(number + 1 - slots, wait);
                 std::memcpy(slot(number), tensor.data() + done, std::min(slot_bytes, tensor.size() - done));
                 lines.filled.advance(++number, wait);
               }
             });
           }},
      setting);
}

// --- By messages over a socket. ---

void serve_socket(const Shape& shape, ServerEnd& end) {
  const Memory memory(shape.there);
  std::memset(memory.data(), 0, memory.size());
  {
    const Socket socket = accept_one(Wire::unix_socket, end);
    std::vector<char> request(shape.request), reply(shape.reply);
    while (socket.read(request.data(), request.size())) {
      Header header;
      std::memcpy(&header, request.data(), sizeof header);
      fetch(header, memory);
      const Acknowledgement text{header.call, last_word(memory.data(), shape.there)};
      std::memcpy(reply.data(), &text, sizeof text);
      socket.write(reply.data(), reply.size());
    }
  }
  end.wait_for_client();
}

void measure_socket(const Shape& shape, ClientEnd& end) {
  permit_reading();
  const Socket socket = connect_to(Wire::unix_socket, end.address());
  std::vector<char> request(shape.request), reply(shape.reply);
  end.report(send_tensors(shape.there, end.budget(), [&](const Tensor& tensor, std::uint64_t call) {
    const Header header = tensor.header(call);
    std::memcpy(request.data(), &header, sizeof header);
    socket.write(request.data(), request.size());
    if (!socket.read(reply.data(), reply.size()))
      throw std::runtime_error("the server closed the connection");
    Acknowledgement text;
    std::memcpy(&text, reply.data(), sizeof text);
    return text;
  }));
}

Outcome by_socket(const Shape& shape, const Setting& setting) {
  Outcome outcome = measure_pair({.serve = [&](ServerEnd& end) { serve_socket(shape, end); },
                                  .measure = [&](ClientEnd& end) { measure_socket(shape, end); }},
                                 setting);
  outcome.notes["wait"] = "blocking";
  return outcome;
}

}  // namespace

std::optional<Contender> raw_copy_peer(const Work& work) {
  if (work.wire != Wire::same_host || work.kind != Kind::bulk) return std::nullopt;
  const Shape shape = shape_of(work);
  std::vector<Way> ways{{"socket", [=](const Setting& setting) { return by_socket(shape, setting); }},
                        {"ring", [=, wait = work.wait](const Setting& setting) {
                           return by_ring(shape.there, wait, setting);
                         }}};
  if (work.wait == Wait::spinning)
    ways.push_back({"spin", [=](const Setting& setting) { return by_spinning(shape.there, setting); }});
  return Contender{"raw", notes_of(work.wait, "main"),
                   [ways](const Setting& setting) { return measure_best(ways, setting); }};
}

}  // namespace weft::bench
