// HttpServer: answers GET requests for a few fixed paths over HTTP/1.1: for Prometheus and for probes, no
// more.
//
// It has a thread of its own, on which the pages are made, one at a time, so it answers while the agent's
// loops do not. A request is read for 5 s and 8 KiB at most, and each connection has one answer. At most 64
// connections are open at a time: a further one takes the place of the oldest that has not sent its request,
// or else of the oldest, so that silent clients do not keep a probe out. Ends with its destructor, which
// waits for a page that is being made. Thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace weft::observe {

// The answer to one request.
struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

class WEFT_EXPORT HttpServer {
 public:
  using Pages =
      std::map<std::string, std::function<HttpReply()>>;  // by path; what one throws is a status 500

  // address: "127.0.0.1:9464", "[::1]:0"; port 0: any free one. remote: it may be one that other hosts reach,
  // all of whom it answers. Throws rpc::Error: invalid_argument, permission_denied (without `remote`),
  // unavailable.
  HttpServer(const std::string& address, Pages pages, bool remote = false);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& address() const { return address_; }  // host:port, as bound

 private:
  class Exchange;
  struct State;
  std::string address_;
  std::unique_ptr<State> state_;
};

}  // namespace weft::observe
