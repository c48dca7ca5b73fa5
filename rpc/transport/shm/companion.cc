#include <weft/rpc/transport/shm/companion.h>

#include <weft/rpc/transport/internal/unix_socket.h>

#include <asio/ip/address.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace weft::rpc {
namespace {

bool is_private(const std::string& folder) {
  struct stat info{};
  return ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 077) == 0;
}

// $XDG_RUNTIME_DIR/weft, which exists as long as the user's session, or /tmp/weft-UID. Empty if neither is
// safe.
std::string folder(bool make) {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string choices[] = {runtime != nullptr && *runtime == '/' ? std::string(runtime) + "/weft" : "",
                                 "/tmp/weft-" + std::to_string(::geteuid())};
  for (const std::string& choice : choices) {
    if (choice.empty()) continue;
    if (make) ::mkdir(choice.c_str(), 0700);
    if (is_private(choice)) return choice;
  }
  return {};
}

// Identifies the network namespace: namespaces may share the file system, but a port belongs to one
// namespace.
std::string network_namespace() {
  std::error_code unknown;
  const std::string link = std::filesystem::read_symlink("/proc/self/ns/net", unknown).string();
  std::string digits;
  for (const char c : link)
    if (c >= '0' && c <= '9') digits += c;
  return digits;
}

// Whether this process should sweep now: no, if the mark file shows that a process has swept recently.
bool claim_sweep(const std::string& place) {
  constexpr auto often_enough = std::chrono::minutes{1};
  const std::string mark = place + "/.swept";
  struct stat info{};
  const bool known = ::lstat(mark.c_str(), &info) == 0;
  const auto age = std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(info.st_mtime);
  if (known && age >= std::chrono::seconds{0} && age < often_enough) return false;
  const int file = ::open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return true;
  ::futimens(file, nullptr);
  ::close(file);
  return true;
}

// Removes the sockets of killed processes, on which no process listens. Young sockets are kept, because their
// owners may be about to listen. Each remaining socket is probed, so claim_sweep() limits how often this
// is done when thousands of agents start.
void sweep(const std::string& place) {
  constexpr auto old_enough = std::chrono::minutes{1};
  if (!claim_sweep(place)) return;
  asio::io_context context;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(place, error)) {
    struct stat info{};
    if (::lstat(entry.path().c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) continue;
    if (std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(info.st_mtime) < old_enough)
      continue;
    try {
      remove_stale(context, entry.path().native());
    } catch (const asio::system_error&) {
      return;  // no descriptor is left
    }
  }
}

Address at(const std::string& folder, const std::string& name) {
  return {.scheme = "shm", .host = {}, .port = {}, .path = folder + "/" + name};
}

std::string tcp_name(const std::string& space, const std::string& host, const std::string& port) {
  return "tcp-" + space + "-" + host + "-" + port;
}

// From the socket's file, so that all paths to it give the same name; empty if it does not exist.
std::string unix_name(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return {};
  return "unix-" + std::to_string(info.st_dev) + "-" + std::to_string(info.st_ino);
}

}  // namespace

std::optional<Address> companion_of(const Address& address) {
  if (address.scheme != "tcp" && address.scheme != "unix") return std::nullopt;
  const std::string place = folder(true);
  if (place.empty()) return std::nullopt;
  sweep(place);
  if (address.scheme == "unix") {
    const std::string name = unix_name(address.path);
    return name.empty() ? std::nullopt : std::optional(at(place, name));
  }
  const std::string space = network_namespace();
  if (space.empty()) return std::nullopt;
  return at(place, tcp_name(space, address.host, address.port));
}

std::vector<Address> companions_towards(const Address& address) {
  std::vector<Address> found;
  if (address.scheme != "tcp" && address.scheme != "unix") return found;
  const std::string place = folder(false);
  if (place.empty()) return found;
  const auto try_name = [&](const std::string& name) {
    std::error_code unknown;
    Address companion = at(place, name);
    if (!name.empty() && is_socket(std::filesystem::symlink_status(companion.path, unknown)))
      found.push_back(std::move(companion));
  };
  if (address.scheme == "unix") {
    try_name(unix_name(address.path));
    return found;
  }
  const std::string space = network_namespace();
  if (space.empty()) return found;
  std::vector<std::string> hosts;
  if (address.host == "localhost") {
    hosts = {"127.0.0.1", "::1"};
  } else {
    asio::error_code error;
    const auto number = asio::ip::make_address(address.host, error);
    if (!error) hosts = {number.to_string()};
  }
  for (const std::string& host : hosts) {
    try_name(tcp_name(space, host, address.port));
    // A listener on the wildcard address also accepts connections to a loopback address.
    if (!asio::ip::make_address(host).is_loopback()) continue;
    try_name(tcp_name(space, host.find(':') == std::string::npos ? "0.0.0.0" : "::", address.port));
  }
  return found;
}

}  // namespace weft::rpc
