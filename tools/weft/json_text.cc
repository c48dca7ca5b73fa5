#include "tools/weft/json_text.h"

#include <weft/rpc/core/error.h>

#include <set>

namespace weft::tool {
namespace {

using rpc::Error;
using rpc::ErrorKind;

constexpr int max_json_levels = 200;
constexpr std::size_t max_shown = 60;  // bytes of an excerpt

// Escapes DEL and the C1 control characters. They control terminals, and JSON does not require that they are
// escaped. In JSON they occur only within strings.
std::string escape_controls(std::string text) {
  const auto is_control = [&](std::size_t i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0x7f) return true;
    return byte == 0xc2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xe0) == 0x80;
  };
  std::size_t i = 0;
  while (i < text.size() && !is_control(i)) ++i;
  if (i == text.size()) return text;
  std::string out = text.substr(0, i);
  for (; i < text.size(); ++i) {
    if (!is_control(i)) {
      out += text[i];
      continue;
    }
    char escaped[8];
    const unsigned code = text[i] == 0x7f ? 0x7f : static_cast<unsigned char>(text[++i]);
    std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
    out += escaped;
  }
  return out;
}

template <class Json>
std::string leaf(const Json& json) {
  return escape_controls(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string quoted(const std::string& text) { return leaf(PrintedJson(text)); }

// Appends the value on one line. Returns false, and stops, when `out` exceeds `most` bytes.
template <class Json>
bool append_line(std::string& out, const Json& json, std::size_t most) {
  if (!json.is_structured()) {
    out += leaf(json);
    return out.size() <= most;
  }
  const bool object = json.is_object();
  out += object ? '{' : '[';
  bool first = true;
  for (auto i = json.begin(); i != json.end(); ++i) {
    if (!std::exchange(first, false)) out += ", ";
    if (object) out += quoted(i.key()) + ": ";
    if (!append_line(out, *i, most)) return false;
  }
  out += object ? '}' : ']';
  return out.size() <= most;
}

class Lines {
 public:
  explicit Lines(std::size_t width) : width_(width) {}
  std::string take() { return std::move(out_); }

  // after: the number of bytes that follow the value on its last line, for a comma.
  void append(const PrintedJson& json, std::size_t indent, std::size_t after) {
    const std::size_t used = out_.size() - line_ + after;
    std::string line;
    if (append_line(line, json, used < width_ ? width_ - used : 0) || json.empty() || !json.is_structured()) {
      out_ += line;
      return;
    }
    const bool object = json.is_object();
    const bool fill = !object && std::none_of(json.begin(), json.end(),
                                              [](const PrintedJson& one) { return one.is_structured(); });
    out_ += object ? '{' : '[';
    bool first = true;
    for (auto i = json.begin(); i != json.end(); ++i) {
      const bool last = std::next(i) == json.end();
      if (fill) {
        const std::string text = leaf(*i);
        if (first || out_.size() - line_ + 1 + text.size() + 1 > width_) {
          new_line(indent + 2);
        } else {
          out_ += ' ';
        }
        out_ += text;
      } else {
        new_line(indent + 2);
        if (object) out_ += quoted(i.key()) + ": ";
        append(*i, indent + 2, last ? 0 : 1);
      }
      first = false;
      if (!last) out_ += ',';
    }
    new_line(indent);
    out_ += object ? '}' : ']';
  }

 private:
  void new_line(std::size_t indent) {
    out_ += '\n';
    line_ = out_.size();
    out_.append(indent, ' ');
  }

  const std::size_t width_;
  std::string out_;
  std::size_t line_ = 0;  // where the last line begins
};

template <class Json>
std::string one_line(const Json& json) {
  std::string out;
  append_line(out, json, out.max_size());
  return out;
}

}  // namespace

GivenJson parse_json(std::string_view text) {
  std::vector<std::set<std::string>> keys;  // the keys of each object that contains the current position
  const auto watch = [&](int depth, GivenJson::parse_event_t event, GivenJson& value) {
    if (depth > max_json_levels) throw Error(ErrorKind::invalid_argument, "the JSON is nested too deeply");
    if (event == GivenJson::parse_event_t::object_start) keys.emplace_back();
    if (event == GivenJson::parse_event_t::object_end) keys.pop_back();
    if (event == GivenJson::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw Error(ErrorKind::invalid_argument,
                  "the JSON names " + on_one_line(value) + " twice in one object");
    return true;
  };
  try {
    return GivenJson::parse(text, watch);
  } catch (const GivenJson::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error while …"
    std::string_view why = error.what();
    if (const std::size_t id = why.find("] "); id != std::string_view::npos) why.remove_prefix(id + 2);
    if (why.starts_with("parse error ")) why.remove_prefix(std::string_view("parse error ").size());
    throw Error(ErrorKind::invalid_argument, "not JSON, " + std::string(why));
  }
}

void add_field(PrintedJson& object, std::string name, PrintedJson value) {
  if (!object.is_object()) object = PrintedJson::object();
  auto& fields = object.get_ref<PrintedJson::object_t&>();
  using Fields = PrintedJson::object_t::Container;
  static_cast<Fields&>(fields).emplace_back(std::move(name), std::move(value));
}

std::string on_one_line(const PrintedJson& json) { return one_line(json); }
std::string on_one_line(const GivenJson& json) { return one_line(json); }

std::string excerpt(std::string text) {
  if (text.size() <= max_shown) return text;
  std::size_t end = max_shown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // a whole character
  return text.substr(0, end) + "…";
}

std::string excerpt(const GivenJson& json) {
  std::string out;
  append_line(out, json, max_shown + 1);  // appends no text beyond the excerpt
  return excerpt(std::move(out));
}

std::string on_lines(const PrintedJson& json, std::size_t width) {
  Lines lines(width);
  lines.append(json, 0, 0);
  return lines.take();
}

std::string printable(std::string_view text) {
  std::string out;
  std::size_t start = 0;
  for (;;) {
    const std::size_t end = text.find('\n', start);
    const std::string line = quoted(std::string(text.substr(start, end - start)));
    // Removes the quotation marks around the text, and the escapes of quotation marks within it.
    for (std::size_t i = 1; i + 1 < line.size(); ++i) {
      if (line[i] == '\\' && (line[i + 1] == '"' || line[i + 1] == '\\')) ++i;
      out += line[i];
    }
    if (end == std::string_view::npos) return out;
    out += '\n';
    start = end + 1;
  }
}

}  // namespace weft::tool
