// The lower bound: the same bytes over the same kind of socket, in a bare loop of system calls.
//
// The first eight bytes of a message are the number of the call, which the reply repeats. If the request had
// a tensor, the next eight bytes of the reply repeat its last word. So the client can check that each call
// was answered, and that the server received what the client had sent.
#include "bench/rpc/socket.h"

#include <cstring>

namespace weft::bench {
namespace {

struct Head {
  std::uint64_t call = 0, last_word = 0;
};

std::uint64_t last_word(const char* tensor, std::size_t size) {
  std::uint64_t word = 0;
  if (size >= sizeof word) std::memcpy(&word, tensor + size - sizeof word, sizeof word);
  return word;
}

void put(char* message, const Head& head) { std::memcpy(message, &head, sizeof head); }
Head head_of(const char* message) {
  Head head;
  std::memcpy(&head, message, sizeof head);
  return head;
}

// --- Servers: they run until the client closes the connection. ---

void answer_calls(const Socket& socket, const Shape& shape, bool fresh) {
  std::vector<char> request(shape.request), reply(shape.reply);
  const Memory reused(shape.there);
  while (socket.read(request.data(), request.size())) {
    std::optional<Memory> untouched;
    if (fresh) untouched.emplace(shape.there);
    const Memory& tensor = fresh ? *untouched : reused;
    if (!socket.read(tensor.data(), shape.there)) return;
    put(reply.data(), {head_of(request.data()).call, last_word(tensor.data(), shape.there)});
    iovec parts[] = {{reply.data(), reply.size()}, {tensor.data(), shape.back}};
    socket.write(parts, shape.back == 0 ? 1 : 2);
  }
}

// Sends the replies to all pending requests in one write.
void answer_batches(const Socket& socket, const Shape& shape) {
  std::vector<char> requests(in_flight * shape.request), replies(in_flight * shape.reply);
  std::size_t pending = 0;
  while (const std::size_t n = socket.read_some(requests.data() + pending, requests.size() - pending)) {
    pending += n;
    const std::size_t whole = pending / shape.request;
    for (std::size_t i = 0; i < whole; ++i)
      put(replies.data() + i * shape.reply, head_of(requests.data() + i * shape.request));
    socket.write(replies.data(), whole * shape.reply);
    pending -= whole * shape.request;
    std::memmove(requests.data(), requests.data() + whole * shape.request, pending);
  }
}

void serve(const Work& work, bool fresh, ServerEnd& end) {
  {
    Socket socket = accept_one(work.wire, end);
    socket.set_wait(work.wait);
    if (work.kind == Kind::throughput) {
      answer_batches(socket, shape_of(work));
    } else {
      answer_calls(socket, shape_of(work), fresh);
    }
  }
  end.wait_for_client();
}

// --- Clients. ---

class Caller {
 public:
  Caller(const Socket& socket, const Shape& shape, bool fresh)
      : socket_(socket),
        shape_(shape),
        fresh_(fresh),
        request_(shape.request),
        reply_(shape.reply),
        tensor_(shape.there),
        reused_(shape.back) {
    std::memset(tensor_.data(), 1, shape.there);
  }

  void call() {
    put(request_.data(), {++call_, 0});
    iovec parts[] = {{request_.data(), request_.size()}, {tensor_.data(), shape_.there}};
    socket_.write(parts, shape_.there == 0 ? 1 : 2);
    std::optional<Memory> untouched;
    if (fresh_) untouched.emplace(shape_.back);
    const Memory& back = fresh_ ? *untouched : reused_;
    if (!socket_.read(reply_.data(), reply_.size()) || !socket_.read(back.data(), shape_.back))
      throw std::runtime_error("the server closed the connection");
    const Head head = head_of(reply_.data());
    const std::uint64_t sent = last_word(tensor_.data(), shape_.there);
    expect_answer(head.call == call_ && head.last_word == sent &&
                  (shape_.back == 0 || last_word(back.data(), shape_.back) == sent));
  }

 private:
  const Socket& socket_;
  const Shape shape_;
  const bool fresh_;
  std::vector<char> request_, reply_;
  Memory tensor_, reused_;
  std::uint64_t call_ = 0;
};

Figures call_one_by_one(const Socket& socket, const Work& work, bool fresh, const Budget& budget) {
  Caller caller(socket, shape_of(work), fresh);
  if (work.kind == Kind::bulk) {
    RateMeter meter(budget);
    do caller.call();
    while (meter.count(1));
    return meter.bandwidth(work.bytes);
  }
  LatencyMeter meter(budget);
  do {
    meter.begin();
    caller.call();
  } while (meter.end());
  return meter.figures();
}

Figures call_in_batches(const Socket& socket, const Shape& shape, const Budget& budget) {
  RateMeter meter(budget);
  std::vector<char> requests(in_flight * shape.request), replies(in_flight * shape.reply);
  std::uint64_t call = 0;
  do {
    for (std::size_t i = 0; i < in_flight; ++i) put(requests.data() + i * shape.request, {call + i, 0});
    socket.write(requests.data(), requests.size());
    if (!socket.read(replies.data(), replies.size()))
      throw std::runtime_error("the server closed the connection");
    for (std::size_t i = 0; i < in_flight; ++i)
      expect_answer(head_of(replies.data() + i * shape.reply).call == call + i);
    call += in_flight;
  } while (meter.count(in_flight));
  return meter.calls();
}

void measure(const Work& work, bool fresh, ClientEnd& end) {
  Socket socket = connect_to(work.wire, end.address());
  socket.set_wait(work.wait);
  end.report(work.kind == Kind::throughput ? call_in_batches(socket, shape_of(work), end.budget())
                                           : call_one_by_one(socket, work, fresh, end.budget()));
}

std::optional<Contender> make(const std::string& peer, const Work& work, bool fresh) {
  const bool by_socket = work.wire == Wire::tcp || work.wire == Wire::unix_socket;
  if (!by_socket || !is_plain(work.kind)) return std::nullopt;
  return contender(peer, notes_of(work.wait, "main"),
                   {.serve = [=](ServerEnd& end) { serve(work, fresh, end); },
                    .measure = [=](ClientEnd& end) { measure(work, fresh, end); }});
}

}  // namespace

std::optional<Contender> raw_peer(const Work& work) { return make("raw", work, false); }

std::optional<Contender> raw_fresh_peer(const Work& work) {
  if (work.kind != Kind::bulk && work.kind != Kind::echo) return std::nullopt;
  return make("raw-fresh", work, true);
}

}  // namespace weft::bench
