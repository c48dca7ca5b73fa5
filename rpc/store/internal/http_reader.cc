#include <weft/rpc/store/internal/http_reader.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <charconv>

namespace weft::rpc::detail {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::protocol_error, "not an HTTP response: " + what);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equal(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The last element of a comma-separated list.
std::string_view last_of(std::string_view list) {
  const std::size_t comma = list.rfind(',');
  return trim(comma == std::string_view::npos ? list : list.substr(comma + 1));
}

std::uint64_t number(std::string_view text, int base) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size())
    refuse("'" + std::string(text.substr(0, 40)) + "' is no length");
  return value;
}

}  // namespace

std::size_t HttpReader::push(std::string_view bytes) {
  const std::size_t given = bytes.size();
  while (!bytes.empty() && stage_ != Stage::complete) {
    switch (stage_) {
      case Stage::sized:
      case Stage::chunk: {
        const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size()));
        body_(bytes.substr(0, part));
        bytes.remove_prefix(part);
        left_ -= part;
        if (left_ == 0) stage_ = stage_ == Stage::chunk ? Stage::chunk_end : Stage::complete;
        break;
      }
      case Stage::to_the_end:
        body_(bytes);
        return given;
      default:
        if (take_line(bytes)) {
          on_line();
          line_.clear();
        }
    }
  }
  return given - bytes.size();
}

void HttpReader::connection_ended() {
  if (stage_ == Stage::to_the_end) stage_ = Stage::complete;
  if (stage_ != Stage::complete) refuse("it was cut short");
}

bool HttpReader::take_line(std::string_view& bytes) {
  const std::size_t end = bytes.find('\n');
  const std::string_view part = bytes.substr(0, end);
  head_bytes_ += part.size();
  if (head_bytes_ > max_head) refuse("its head is too long");
  line_ += part;
  bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
  if (end == std::string_view::npos) return false;
  if (line_.ends_with('\r')) line_.pop_back();
  return true;
}

void HttpReader::on_line() {
  switch (stage_) {
    case Stage::head:
      return on_head_line();
    case Stage::chunk_size: {
      const std::string_view line = line_;
      left_ = number(trim(line.substr(0, line.find(';'))), 16);  // ignores extensions
      stage_ = left_ == 0 ? Stage::trailer : Stage::chunk;
      head_bytes_ = 0;
      return;
    }
    case Stage::chunk_end:
      if (!line_.empty()) refuse("a chunk is longer than it says");
      stage_ = Stage::chunk_size;
      return;
    default:  // ignores trailers
      if (line_.empty()) stage_ = Stage::complete;
  }
}

void HttpReader::on_head_line() {
  const std::string_view line = line_;
  if (status_ == 0) {
    // "HTTP/1.1 200 OK"
    if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ')
      refuse("it begins with '" + std::string(line.substr(0, 40)) + "'");
    keep_alive_ = line[7] != '0';
    status_ = static_cast<unsigned>(number(line.substr(9, 3), 10));
    if (status_ < 100) refuse("its status is none");
    return;
  }
  if (line.empty()) return begin_body();
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) refuse("a field has no name");
  field(line.substr(0, colon), trim(line.substr(colon + 1)));
}

void HttpReader::field(std::string_view name, std::string_view value) {
  if (equal(name, "content-length")) {
    const std::uint64_t length = number(value, 10);
    if (has_length_ && length != left_) refuse("it has two lengths");
    has_length_ = true;
    left_ = length;
  } else if (equal(name, "transfer-encoding")) {
    if (!equal(last_of(value), "chunked") || chunked_) refuse("its encoding is '" + std::string(value) + "'");
    chunked_ = true;
  } else if (equal(name, "connection") && equal(last_of(value), "close")) {
    keep_alive_ = false;
  }
}

void HttpReader::begin_body() {
  if (status_ < 200) {  // an interim response; the final one follows
    if (status_ == 101) refuse("it changes the protocol");
    status_ = 0;
    has_length_ = chunked_ = false;
    left_ = head_bytes_ = 0;
    return;
  }
  if (status_ == 204 || status_ == 304) {
    stage_ = Stage::complete;
  } else if (chunked_) {
    if (has_length_) refuse("it has a length and chunks");
    stage_ = Stage::chunk_size;
    head_bytes_ = 0;
  } else if (has_length_) {
    stage_ = left_ == 0 ? Stage::complete : Stage::sized;
  } else {
    keep_alive_ = false;
    stage_ = Stage::to_the_end;
  }
}

}  // namespace weft::rpc::detail
