// HttpServer: answers GET and HEAD requests for a few fixed paths over HTTP/1.1, with civetweb.
//
// Threads of civetweb read the requests and make the pages, one page at a time. So the server answers even if
// the agent's loops do not. A request may have at most 8 KiB and must arrive within 5 s. Each connection
// serves one request. 32 connections are served at the same time, including connections that have sent
// nothing yet. Further connections wait until one of these connections is closed. The destructor waits for a
// page that is being made, and up to 2 s if a connection is open. Thread-safe.
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

// The requests that a server answers.
struct HttpAccess {
  bool remote = false;  // permits listening on an address that other hosts can reach
  // true: answers only requests whose Host header is the host of the server's own address or localhost, with
  // any port. Other requests get 403. This protects a server on loopback from web pages of other sites (DNS
  // rebinding).
  bool own_host_only = false;
  // The server answers only the users in this file, by HTTP digest authentication; other users get 401. The
  // lines of the file have the format of htdigest: user:weft:MD5 of "user:weft:password". The server reads
  // the file for each request. Empty: no authentication.
  std::string password_file = {};
};

class WEFT_EXPORT HttpServer {
 public:
  // The pages by path. If the function of a page throws, the status is 500.
  using Pages = std::map<std::string, std::function<HttpReply()>>;

  // address: "127.0.0.1:9464" or "[::1]:0"; port 0: any free port. Throws rpc::Error: invalid_argument if the
  // address is malformed, or if the password file has no user or cannot be read; permission_denied if other
  // hosts can reach the address and access.remote is false; unavailable if the server cannot listen, for
  // example because the address is IPv6 and civetweb was built without IPv6, as in Debian.
  HttpServer(const std::string& address, Pages pages, HttpAccess access = {});
  ~HttpServer();

  const std::string& address() const { return address_; }  // host:port, as bound

 private:
  struct State;
  std::string address_;
  std::unique_ptr<State> state_;
};

}  // namespace weft::observe
