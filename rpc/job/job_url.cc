#include <weft/rpc/job/job_url.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/parse_number.h>
#include <weft/rpc/transport/address.h>

namespace weft::rpc::detail {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, "'" + text + "': " + why);
}

void read_parameter(JobUrl& url, std::string_view parameter) {
  const std::size_t equals = parameter.find('=');
  const std::string_view name = parameter.substr(0, equals);
  if (name != "rank" && name != "world_size")
    refuse(url.text, "'" + std::string(name) + "' is not a parameter, expected rank or world_size");
  if (equals == std::string_view::npos) refuse(url.text, std::string(name) + " has no value");
  auto& place = name == "rank" ? url.rank : url.world_size;
  if (place) refuse(url.text, std::string(name) + " is given twice");
  const std::uint64_t min = name == "rank" ? 0 : 1, max = name == "rank" ? max_agents - 1 : max_agents;
  place = number_between("'" + url.text + "': " + std::string(name), parameter.substr(equals + 1), min, max);
}

void read_parameters(JobUrl& url, std::string_view list) {
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find('&', begin), list.size());
    read_parameter(url, list.substr(begin, end - begin));
    begin = end + 1;
  }
  if (url.rank && url.world_size && *url.rank >= *url.world_size)
    refuse(url.text, "rank " + std::to_string(*url.rank) + " is not within a world of " +
                         std::to_string(*url.world_size));
}

void check_store(const JobUrl& url, std::string_view scheme, std::string_view rest) {
  if (scheme == "tcp") {
    if (Address::parse(url.store).port == "0")
      refuse(url.text, "port 0, expected a port that all agents know");
  } else if (scheme == "file") {
    if (rest.size() < 2 || rest.front() != '/') refuse(url.text, "expected an absolute path: file:///path");
  } else if (rest.empty() || rest.front() == '/' || rest.front() == ',') {
    refuse(url.text, "expected the addresses of etcd: etcd://host:port[,host:port][/prefix]");
  }
}

}  // namespace

std::uint64_t number_between(const std::string& name, std::string_view value, std::uint64_t min,
                             std::uint64_t max) {
  const auto number = parse_number<std::uint64_t>(value);
  if (!number || *number < min || *number > max)
    throw Error(ErrorKind::invalid_argument, name + "='" + std::string(value) + "' is not a number from " +
                                                 std::to_string(min) + " to " + std::to_string(max));
  return *number;
}

JobUrl job_url(const std::string& text) {
  const std::size_t separator = text.find("://");
  const std::string_view all(text), scheme = all.substr(0, separator);
  if (separator == std::string::npos ||
      (scheme != "env" && scheme != "tcp" && scheme != "file" && scheme != "etcd"))
    refuse(text, "expected env://, tcp://host:port, file:///path or etcd://host:port[/prefix]");
  const std::size_t question = std::min(text.find('?', separator), text.size());
  const std::size_t begin = separator + std::string_view("://").size();
  const std::string_view rest = all.substr(begin, question - begin);
  JobUrl url{.text = text};
  if (scheme == "env") {
    if (!rest.empty())
      refuse(text, "expected env:// without an address, which the environment states, found '" +
                       std::string(rest) + "'");
  } else {
    url.store = text.substr(0, question);
    check_store(url, scheme, rest);
  }
  if (question != text.size()) read_parameters(url, all.substr(question + 1));
  return url;
}

}  // namespace weft::rpc::detail
