// Debian's etcd-server for a test: one process, on free ports of an address that only this test uses, with
// its data in a temporary folder. The destructor removes everything.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include <fcntl.h>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/loopback.h"

namespace weft::test {

class EtcdServer {
 public:
  // Returns whether this machine has etcd: ./dev setup installs it on Debian.
  static bool installed() { return !program().empty(); }

  EtcdServer() {
    choose_ports();
    if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("no folder for etcd's data");
    start();
  }
  ~EtcdServer() {
    kill();
    std::filesystem::remove_all(folder_);
  }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  std::string server() const { return host_ + ":" + std::to_string(client_); }
  std::string url(const std::string& prefix) const { return "etcd://" + server() + "/" + prefix; }
  bool running() const { return process_ != 0; }

  // Starts etcd on the same ports, with its stored data. Returns when etcd serves clients.
  void start() {
    const std::string client = "http://" + server();
    const std::string peer = "http://" + host_ + ":" + std::to_string(peer_);
    std::vector<std::string> words{program(),
                                   "--data-dir",
                                   folder_ + "/data",
                                   "--listen-client-urls",
                                   client,
                                   "--advertise-client-urls",
                                   client,
                                   "--listen-peer-urls",
                                   peer,
                                   "--initial-advertise-peer-urls",
                                   peer,
                                   "--initial-cluster",
                                   "default=" + peer};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string log = folder_ + "/log";
    const pid_t parent = ::getpid();
    process_ = ::fork();
    if (process_ < 0) throw std::runtime_error(std::string("cannot start etcd: ") + std::strerror(errno));
    if (process_ == 0) {
      // etcd ends with the thread that started it, also if that thread is killed.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      if (::getppid() == parent && file >= 0 && ::dup2(file, STDOUT_FILENO) >= 0 &&
          ::dup2(file, STDERR_FILENO) >= 0)
        ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    await_health();
  }
  void kill() {
    if (process_ == 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  void stop() const { ::kill(process_, SIGSTOP); }
  void go_on() const { ::kill(process_, SIGCONT); }
  void forget() { std::filesystem::remove_all(folder_ + "/data"); }  // while it does not run

 private:
  static std::string program() {
    for (const char* path : {"/usr/bin/etcd", "/usr/local/bin/etcd"})
      if (::access(path, X_OK) == 0) return path;
    return "";
  }
  void choose_ports() {  // two different ports: both are bound at the same time
    asio::io_context context;
    const asio::ip::tcp::endpoint any(asio::ip::make_address(host_), 0);
    const asio::ip::tcp::acceptor client(context, any), peer(context, any);
    client_ = client.local_endpoint().port();
    peer_ = peer.local_endpoint().port();
  }
  void await_health() {
    for (int tries = 0; tries < 6000; ++tries) {
      if (healthy()) return;
      if (::waitpid(process_, nullptr, WNOHANG) != 0) {
        process_ = 0;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
    throw std::runtime_error("etcd did not start: see " + folder_ + "/log");
  }
  bool healthy() const {
    asio::io_context context;
    asio::ip::tcp::socket socket(context);
    asio::error_code error;
    socket.connect({asio::ip::make_address(host_), client_}, error);
    if (!error) asio::write(socket, asio::buffer(std::string("GET /health HTTP/1.0\r\n\r\n")), error);
    std::string answer;
    if (!error) asio::read(socket, asio::dynamic_buffer(answer), error);
    return answer.find("true") != std::string::npos;
  }

  std::string folder_ = (std::filesystem::temp_directory_path() / "weft-etcd-XXXXXX").string();
  std::string host_ = own_loopback();
  std::uint16_t client_ = 0, peer_ = 0;
  pid_t process_ = 0;
};

}  // namespace weft::test
