#include "tools/weft/command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "tools/weft/duration.h"
#include "tools/weft/json_text.h"

namespace weft::tool {

void AskedAgent::add_to(CLI::App& command) {
  const std::string forms =
      "host:port or [v6]:port, with or without tcp://; unix:///path, /path or ./path; shm:///path";
  command.add_option("ADDRESS", address, forms)->required();
  command.add_option("--timeout", timeout, "How long to wait for the reply: 5s, 300ms, 2m; 0: without limit")
      ->type_name("TIME")
      ->capture_default_str();
  command.add_flag("-v,--verbose", verbose, "Log the events of the connection");
  const auto file = [&](const char* name, std::string& into, const char* variable, const char* what) {
    command.add_option(name, into, what)->type_name("FILE")->envname(variable)->group("Credentials");
  };
  file("--certificate", credentials.certificate_file, "WEFT_CERTIFICATE",
       "The certificate of this client, PEM");
  file("--key", credentials.key_file, "WEFT_KEY", "The key of the certificate");
  file("--trust", credentials.trust_file, "WEFT_TRUST", "The authorities to trust");
  file("--secret", credentials.secret_file, "WEFT_SECRET",
       "The job's secret, instead of a certificate or in addition to it");
}

Client& AskedAgent::connect() {
  client_ = std::make_shared<Client>(address, parse_duration(timeout), credentials, verbose);
  return *client_;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw UsageError("cannot read " + printable(path));
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  if (std::ofstream file(path, std::ios::binary); !(file << text << std::flush))
    throw UsageError("cannot write " + printable(path));
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) != 0; }

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) return size.ws_col;
  return 80;
}

std::size_t terminal_height() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row >= 10) return size.ws_row;
  return 24;
}

}  // namespace weft::tool
