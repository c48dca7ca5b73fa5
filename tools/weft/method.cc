#include "tools/weft/method.h"

#include <weft/rpc/core/error.h>

#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace {

std::optional<ParsedType> parsed(const std::string& text) {
  try {
    return ParsedType::parse(text);
  } catch (const rpc::Error&) {
    return std::nullopt;
  }
}

void collect(const Type& type, std::set<std::string>& known, std::vector<std::string>& texts) {
  if (type.kind == TypeKind::recursion) return;
  if (type.kind == TypeKind::record) {
    std::string text = type.name + " {";
    for (std::size_t i = 0; i < type.parts.size(); ++i)
      text += (i != 0 ? ", " : "") + type.fields[i] + ": " + readable(*type.parts[i]);
    text += '}';
    if (!known.insert(text).second) return;
    texts.push_back(printable(text));
  }
  for (const Type* part : type.parts) collect(*part, known, texts);
}

// Levenshtein's distance.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// Names that the user may have meant, the most similar first.
std::vector<std::string> similar(const std::vector<rpc::MethodInfo>& listed, const std::string& name) {
  constexpr std::size_t most = 3, longest = 200, looked_at = 10'000;  // the peer controls the listing
  std::vector<std::pair<std::size_t, std::string>> found;
  if (name.size() > longest) return {};
  for (std::size_t i = 0; i < std::min(looked_at, listed.size()); ++i) {
    const rpc::MethodInfo& info = listed[i];
    if (info.name.size() > longest) continue;
    const std::size_t apart = distance(name, info.name);
    const bool part = info.name.ends_with("." + name) || info.name.starts_with(name + ".");
    if (part || apart <= 1 + info.name.size() / 4) found.emplace_back(part ? 0 : apart, info.name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(most, found.size()) && found[i].first == found[0].first; ++i)
    names.push_back(found[i].second);
  return names;
}

}  // namespace

Method::Method(rpc::MethodInfo listed) : info(std::move(listed)), result(parsed(info.result)) {
  for (const std::string& parameter : info.parameters) parameters.push_back(parsed(parameter));
}

std::string Method::signature() const {
  std::string text = "(";
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (i != 0) text += ", ";
    text += parameters[i] ? readable(**parameters[i]) : info.parameters[i];
  }
  return printable(text + ") -> " + (result ? readable(**result) : info.result));
}

rpc::MethodInfo find_method(const std::vector<rpc::MethodInfo>& listed, const std::string& name) {
  for (const auto& info : listed)
    if (info.name == name) return info;
  std::string text = "the agent serves no method '" + name + "'";
  const auto others = similar(listed, name);
  if (others.empty()) throw UsageError(text + ": see weft list");
  text += ": did you mean ";
  for (std::size_t i = 0; i < others.size(); ++i)
    text += (i == 0 ? "" : i + 1 < others.size() ? ", " : " or ") + printable(others[i]);
  throw UsageError(text + "?");
}

bool matches(const std::string& name, const std::string& pattern) {
  if (pattern.find_first_of("*?[") == std::string::npos) return name.find(pattern) != std::string::npos;
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::vector<std::string> struct_texts(const std::vector<Method>& methods) {
  std::set<std::string> known;
  std::vector<std::string> texts;
  for (const Method& method : methods) {
    for (const auto& parameter : method.parameters)
      if (parameter) collect(**parameter, known, texts);
    if (method.result) collect(**method.result, known, texts);
  }
  return texts;
}

}  // namespace weft::tool
