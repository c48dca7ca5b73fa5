#include "tools/weft/client.h"

#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/address.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace {

rpc::AgentOptions options(const rpc::CredentialOptions& files, bool verbose) {
  // Agents distinguish peers by name. Two commands that run at the same time, on one host or several, need
  // different names.
  std::random_device random;
  rpc::AgentOptions options;
  options.name = "weft-" + std::to_string(::getpid()) + "-" + std::to_string(random());
  if (!files.certificate_file.empty() || !files.trust_file.empty() || !files.secret_file.empty()) {
    try {
      options.credentials = std::make_shared<rpc::Credentials>(files);
    } catch (const rpc::Error& error) {
      throw UsageError(printable(error.what()));
    }
    // A peer with a certificate must use the name in its certificate.
    if (const std::string name = options.credentials->name(); !name.empty()) options.name = name;
  }
  options.handler_threads = 1;
  options.log = [verbose](const rpc::LogRecord& record) {
    if (verbose) std::fprintf(stderr, "weft: %s\n", printable(record.message).c_str());
  };
  return options;
}

}  // namespace

std::string complete_address(const std::string& address) {
  const std::string whole = rpc::Address::looks_like(address)                       ? address
                            : address.starts_with('/') || address.starts_with("./") ? "unix://" + address
                                                                                    : "tcp://" + address;
  try {
    const rpc::Address parsed = rpc::Address::parse(whole);
    if (parsed.scheme == "inproc") throw UsageError("inproc:// addresses exist only within one process");
    if (parsed.port == "0") throw UsageError("port 0 is not an address to call");
    return parsed.text();
  } catch (const rpc::Error& error) {
    throw UsageError(printable(error.what()));
  }
}

Client::Client(const std::string& address, std::chrono::nanoseconds timeout,
               const rpc::CredentialOptions& credentials, bool verbose)
    : address_(complete_address(address)),
      timeout_(timeout),
      agent_(options(credentials, verbose)),
      peer_(agent_.connect(address_)) {}

rpc::Peer Client::timed(const rpc::Peer& peer) const {
  if (timeout_.count() == 0) return peer;
  const auto left = timeout_ - (rpc::Clock::now() - began_);
  return peer.with({.timeout = std::max<std::chrono::nanoseconds>(left, std::chrono::nanoseconds{1})});
}

}  // namespace weft::tool
