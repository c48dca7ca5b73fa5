// HttpServer: answers GET requests for a few fixed paths over HTTP/1.1, for Prometheus and for probes only.
//
// Its own thread makes the pages, one at a time, so it answers even if the agent's loops do not. A request
// may take 5 s and have 8 KiB, and each connection has one reply. At most 64 connections are open: a further
// one replaces the oldest that has not sent its request, otherwise the oldest, so that silent clients do not
// block a probe. The destructor waits for a page that is being made. Thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace weft::observe {

// The reply to one request.
struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

class WEFT_EXPORT HttpServer {
 public:
  using Pages =
      std::map<std::string, std::function<HttpReply()>>;  // by path; an exception becomes status 500

  // address: "127.0.0.1:9464", "[::1]:0"; port 0: any free port. remote: permits an address that other hosts
  // can reach; it answers all of them. Throws rpc::Error: invalid_argument, permission_denied (without
  // `remote`), unavailable.
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
