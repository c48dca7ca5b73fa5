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

// Of the listener on `host`, which is not used for a Unix address. Empty if there is none. A Unix socket is
// named after its file, so that all paths to it give the same name.
std::string name_of(const Address& address, const std::string& host) {
  if (address.scheme == "unix") {
    struct stat info{};
    if (::stat(address.path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return {};
    return "unix-" + std::to_string(info.st_dev) + "-" + std::to_string(info.st_ino);
  }
  const std::string space = network_namespace();
  return space.empty() ? space : "tcp-" + space + "-" + host + "-" + address.port;
}

// Of the companions of the address. Empty: it cannot have one.
std::string folder_for(const Address& address, bool make) {
  return address.scheme == "tcp" || address.scheme == "unix" ? folder(make) : std::string();
}

Address at(const std::string& folder, const std::string& name) {
  return {.scheme = "shm", .host = {}, .port = {}, .path = folder + "/" + name};
}

}  // namespace

std::optional<Address> companion_of(const Address& address) {
  const std::string place = folder_for(address, true);
  if (place.empty()) return std::nullopt;
  sweep(place);
  const std::string name = name_of(address, address.host);
  return name.empty() ? std::nullopt : std::optional(at(place, name));
}

std::vector<Address> companions_towards(const Address& address) {
  std::vector<Address> found;
  const std::string place = folder_for(address, false);
  if (place.empty()) return found;
  const auto try_host = [&](const std::string& host) {
    const std::string name = name_of(address, host);
    std::error_code unknown;
    Address companion = at(place, name);
    if (!name.empty() && is_socket(std::filesystem::symlink_status(companion.path, unknown)))
      found.push_back(std::move(companion));
  };
  std::vector<std::string> hosts{address.host};
  if (address.host == "localhost") hosts = {"127.0.0.1", "::1"};
  for (const std::string& host : hosts) {
    asio::error_code error;
    const auto number = asio::ip::make_address(host, error);
    if (!error || address.scheme == "unix") try_host(error ? host : number.to_string());
    // A listener on the wildcard address also accepts connections to a loopback address.
    if (!error && number.is_loopback()) try_host(number.is_v4() ? "0.0.0.0" : "::");
  }
  return found;
}

}  // namespace weft::rpc
