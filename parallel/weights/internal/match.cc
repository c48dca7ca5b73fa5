#include <weft/parallel/weights/internal/match.h>

#include <weft/rpc/core/error.h>

#include <ATen/ops/equal.h>

namespace weft::weights {
namespace {

// Equal for names of the same elements.
std::string identity_of(const std::string& name, const TensorForm& form) {
  if (form.storage.empty()) return "only " + name;
  std::string text = form.storage + " " + std::to_string(form.offset) + " " + to_text(form);
  for (const std::int64_t stride : form.strides) text += " " + std::to_string(stride);
  return text;
}

// Compares bytes, because not all dtypes can be compared, and a NaN does not equal itself.
bool have_same_bytes(const at::Tensor& one, const at::Tensor& other) {
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(at::kByte);
  };
  return one.scalar_type() == other.scalar_type() && at::equal(bytes(one), bytes(other));
}

}  // namespace

void expect_no_faults(const Source& source, const std::map<std::string, std::vector<std::string>>& by_kind) {
  std::string text;
  for (const auto& [kind, all] : by_kind)
    for (const std::string& each : all)
      text += (&each == &all.front() ? (text.empty() ? " " : "; ") + kind + ": " : ", ") + each;
  if (!text.empty())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     source.description() + ": does not fit the module:" + text);
}

Match match(const Source& source, const TensorForms& wanted, const LoadOptions& options) {
  Match match;
  std::map<std::string, std::vector<std::string>> faults;
  std::map<std::string, std::string> found;  // names of the program -> of the file
  for (const auto& [name, form] : source.tensors()) {
    const std::string to = options.names ? options.names(name) : name;
    if (options.names && to.empty()) continue;
    const auto target = wanted.find(to);
    if (target == wanted.end()) {
      if (form.numel() > 0) match.report.unexpected.push_back(to);
      continue;
    }
    const std::string both =
        to + ": " + to_text(form) + " in the file, " + to_text(target->second) + " in the module";
    if (const auto [first, added] = found.emplace(to, name); !added)
      faults["twice"].push_back(to + ": '" + first->second + "' and '" + name + "' in the file");
    if (target->second.sizes != form.sizes) {
      faults["of another shape"].push_back(both);
    } else if (target->second.dtype != form.dtype && !options.convert) {
      faults["of another dtype (LoadOptions::convert)"].push_back(both);
    }
  }
  std::map<std::string, std::string> by_identity;  // -> the name of the file that is read
  for (const auto& [to, name] : found) {
    const auto [first, added] = by_identity.emplace(identity_of(to, wanted.at(to)), name);
    if (added) {
      match.read.emplace(to, name);
    } else {
      match.same.emplace_back(name, first->second);
    }
  }
  for (const auto& [name, form] : wanted)
    if (form.numel() > 0 && !by_identity.contains(identity_of(name, form)))
      match.report.missing.push_back(name);
  if (options.strict) {
    if (!match.report.missing.empty()) faults["missing in the file"] = match.report.missing;
    if (!match.report.unexpected.empty()) faults["unexpected, not in the module"] = match.report.unexpected;
  }
  expect_no_faults(source, faults);
  return match;
}

void expect_same(const Source& source, const Match& match) {
  std::vector<std::string> different;
  for (const auto& [name, kept] : match.same)
    if (!source.form(name).is_same_as(source.form(kept)) &&
        !have_same_bytes(source.view(name), source.view(kept)))
      different.push_back(name + " and " + kept);
  expect_no_faults(source, {{"tied in the module, with other values in the file", different}});
}

}  // namespace weft::weights
