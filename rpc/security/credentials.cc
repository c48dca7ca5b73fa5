#include <weft/rpc/security/credentials.h>

#include <weft/rpc/core/descriptor.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/security/internal/certificate_names.h>
#include <weft/rpc/security/internal/credential_snapshot.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

namespace weft::rpc {
namespace {

constexpr ::off_t largest_file = 1 << 20;

[[noreturn]] void refuse(const std::string& source, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, source + ": " + why);
}

std::string read_file(const std::string& path, const std::string& source, bool confidential) {
  // Open, so that the checked file is the one that is read. Non-blocking, because the path may name a pipe
  // without a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0) refuse(source, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(source, "it is not a regular file");
  if (status.st_size == 0) refuse(source, "it is empty");  // otherwise it would count as not given
  if (status.st_size > largest_file)
    refuse(source, "it is larger than 1 MiB: " + std::to_string(status.st_size) + " bytes");
  if (confidential && (status.st_mode & S_IRWXO) != 0)
    refuse(source, "other users of this host can open it: chmod o= " + path);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  for (std::size_t filled = 0; filled < text.size();) {
    const ::ssize_t moved = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (moved < 0) refuse(source, std::strerror(errno));
    if (moved == 0) text.resize(filled);  // it was truncated in the meantime
    filled += static_cast<std::size_t>(moved);
  }
  return text;
}

CredentialMaterial::Text load(const char* name, const std::string& file, const std::string& pem,
                              bool confidential) {
  const std::string named = std::string("credentials: ") + name;
  if (!file.empty() && !pem.empty())
    refuse(named + "_file", "the same is also given as text, expected one of them");
  if (file.empty()) return {pem, named + "_pem"};
  const std::string source = named + "_file '" + file + "'";
  return {read_file(file, source, confidential), source};
}

std::string without_line_break(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

CredentialMaterial::Secret load(const SharedSecret& secret) {
  std::string source = "credentials: secret '" + printable(secret.id) + "'";
  if (secret.file.empty()) return {secret.id, secret.bytes, std::move(source)};
  source += " of file '" + secret.file + "'";
  if (!secret.bytes.empty()) refuse(source, "its bytes are also given, expected one of them");
  return {secret.id, without_line_break(read_file(secret.file, source, true)), source};
}

// Lines "ID SECRET", or "SECRET".
std::vector<CredentialMaterial::Secret> load_all(const std::string& path) {
  constexpr std::string_view blanks = " \t\r";
  const std::string source = "credentials: secret_file '" + path + "'";
  std::istringstream lines(read_file(path, source, true));
  std::vector<CredentialMaterial::Secret> secrets;
  for (std::string line; std::getline(lines, line);) {
    std::string_view rest = line;
    rest.remove_prefix(std::min(rest.find_first_not_of(blanks), rest.size()));
    rest = rest.substr(0, rest.find_last_not_of(blanks) + 1);
    if (rest.empty() || rest.starts_with('#')) continue;
    const std::size_t gap = rest.find_first_of(blanks);
    if (gap == rest.npos) {
      secrets.push_back({"job", std::string(rest), source});
    } else {
      const std::size_t begin = rest.find_first_not_of(blanks, gap);
      secrets.push_back({std::string(rest.substr(0, gap)), std::string(rest.substr(begin)), source});
    }
  }
  if (secrets.empty()) refuse(source, "there is no secret in it");
  return secrets;
}

std::shared_ptr<const CredentialSnapshot> read(const CredentialOptions& options) {
  CredentialMaterial material{
      .certificate = load("certificate", options.certificate_file, options.certificate_pem, false),
      .key = load("key", options.key_file, options.key_pem, true),
      .trust = load("trust", options.trust_file, options.trust_pem, false)};
  if (!options.secret_file.empty()) {
    if (!options.secrets.empty())
      refuse("credentials: secret_file '" + options.secret_file + "'",
             "secrets are also given, expected one of them");
    material.secrets = load_all(options.secret_file);
  }
  for (const SharedSecret& secret : options.secrets) material.secrets.push_back(load(secret));
  return std::make_shared<const CredentialSnapshot>(material);
}

}  // namespace

Credentials::Credentials(CredentialOptions options)
    : options_(std::move(options)), snapshot_(read(options_)) {}

void Credentials::reload() {
  MutexLock one(reloading_);
  auto fresh = read(options_);
  MutexLock lock(mutex_);
  snapshot_.swap(fresh);
}

void Credentials::replace(CredentialOptions options) {
  MutexLock one(reloading_);
  auto fresh = read(options);
  options_ = std::move(options);
  MutexLock lock(mutex_);
  snapshot_.swap(fresh);
}

std::optional<std::chrono::system_clock::time_point> Credentials::expires() const {
  return snapshot()->expires();
}

std::string Credentials::name() const { return snapshot()->name(); }

std::string Credentials::describe() const { return snapshot()->describe(); }

std::shared_ptr<const CredentialSnapshot> Credentials::snapshot() const {
  MutexLock lock(mutex_);
  return snapshot_;
}

}  // namespace weft::rpc
