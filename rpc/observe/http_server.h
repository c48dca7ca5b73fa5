// HttpServer: answers GET and HEAD requests for a few fixed paths over HTTP/1.1, with civetweb.
//
// civetweb's threads read the requests. A page is made on one of them, one page at a time, so the server
// answers even if the agent's loops do not. A request may take 5 s and have 8 KiB, and each connection has
// one reply. 32 connections are served at the same time, those that have sent nothing yet included; further
// ones wait until one of these is closed. The destructor waits for a page that is being made, and up to 2 s
// if a connection is open. Thread-safe.
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

// Which requests a server answers.
struct HttpAccess {
  bool remote = false;  // it may listen on an address that other hosts can reach
  // Only requests whose Host header is the host of the server's own address or localhost, with any port;
  // others get 403. Protects a server on loopback from pages of other sites (DNS rebinding).
  bool own_host_only = false;
  // Only users in this file, by HTTP digest authentication; others get 401. Lines as htdigest writes them,
  // user:weft:MD5 of "user:weft:password"; the file is read for each request. Empty: everyone.
  std::string password_file = {};
};

class WEFT_EXPORT HttpServer {
 public:
  using Pages =
      std::map<std::string, std::function<HttpReply()>>;  // by path; an exception becomes status 500

  // address: "127.0.0.1:9464", "[::1]:0"; port 0: any free port. remote: permits an address that other hosts
  // can reach; it answers all of them. Throws rpc::Error: invalid_argument, permission_denied (without
  // `remote`), unavailable: also for IPv6 if civetweb was built without it, as Debian's is.
  HttpServer(const std::string& address, Pages pages, bool remote = false);
  // Also throws invalid_argument if the password file has no user or cannot be read.
  HttpServer(const std::string& address, Pages pages, HttpAccess access);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& address() const { return address_; }  // host:port, as bound

 private:
  struct State;
  std::string address_;
  std::unique_ptr<State> state_;
};

}  // namespace weft::observe
