#include <weft/parallel/weights/module.h>

#include <weft/parallel/weights/internal/file_sink.h>
#include <weft/rpc/core/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

namespace weft::weights {
namespace {

[[noreturn]] void refuse_weights(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, why);
}

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

// Collects all that is wrong, for one error.
class Faults {
 public:
  void add(const char* kind, const std::string& text) { faults_[kind].push_back(text); }
  void expect_none(const std::string& what) const {
    if (faults_.empty()) return;
    std::string text = what;
    for (const auto& [kind, all] : faults_) {
      text += std::string("\n  ") + kind + ": ";
      for (const std::string& each : all) text += (&each == &all.front() ? "" : ", ") + each;
    }
    refuse_weights(text);
  }

 private:
  std::map<std::string, std::vector<std::string>> faults_;
};

}  // namespace

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& all : {module.named_parameters(), module.named_buffers()})
    for (const auto& entry : all)
      if (entry.value().defined()) tensors.emplace(entry.key(), entry.value());
  return tensors;
}

LoadReport load_into(torch::nn::Module& module, const Source& source, const LoadOptions& options) {
  const at::NoGradGuard no_history;
  const std::map<std::string, at::Tensor> tensors = tensors_of(module);
  const TensorForms forms = forms_of(tensors);
  LoadReport report;
  Faults faults;
  std::map<std::string, std::string> wanted;  // names of the module -> of the file
  for (const auto& [name, form] : source.tensors()) {
    const std::string to = options.names ? options.names(name) : name;
    if (options.names && to.empty()) continue;
    const auto found = tensors.find(to);
    if (found == tensors.end()) {
      report.unexpected.push_back(to);
      continue;
    }
    const at::Tensor& tensor = found->second;
    const std::string both =
        to + ": " + to_text(form) + " in the file, " + to_text(forms.at(to)) + " in the module";
    if (const auto [first, added] = wanted.emplace(to, name); !added)
      faults.add("twice", to + ": '" + first->second + "' and '" + name + "' in the file");
    if (tensor.is_meta()) faults.add("on the meta device, without memory", to);
    if (tensor.sizes() != at::IntArrayRef(form.sizes)) {
      faults.add("of another shape", both);
    } else if (tensor.scalar_type() != form.dtype && !options.convert) {
      faults.add("of another dtype (LoadOptions::convert)", both);
    }
  }
  // Of tied tensors, one is read; the file must have the same values for the others.
  std::map<std::string, std::string> read, same;  // by identity; names of the file
  for (const auto& [to, name] : wanted) {
    const auto [first, added] = read.emplace(identity_of(to, forms.at(to)), to);
    if (!added) same.emplace(name, wanted.at(first->second));
  }
  for (const auto& [name, form] : forms)
    if (!read.contains(identity_of(name, form))) report.missing.push_back(name);
  if (options.strict) {
    for (const std::string& name : report.missing) faults.add("missing in the file", name);
    for (const std::string& name : report.unexpected) faults.add("unexpected, not in the module", name);
  }
  faults.expect_none(source.description() + ": does not fit the module:");
  for (const auto& [name, kept] : same)
    if (!source.form(name).is_same_as(source.form(kept)) &&
        !have_same_bytes(source.view(name), source.view(kept)))
      faults.add("tied in the module, with other values in the file", name + " and " + kept);
  faults.expect_none(source.description() + ": does not fit the module:");
  for (const auto& [identity, to] : read) source.read(wanted.at(to), tensors.at(to), {}, options.convert);
  return report;
}

void save(const torch::nn::Module& module, Sink& sink, const SaveOptions& options) {
  const std::map<std::string, at::Tensor> tensors = tensors_of(module);
  for (const auto& [name, tensor] : tensors)
    if (tensor.is_meta() && !(options.names && options.names(name).empty()))
      refuse_weights("'" + name + "' cannot be written: it is on the meta device, without memory");
  save_as(forms_of(tensors), {}, [&](const std::string& name) { return tensors.at(name); }, sink, options);
}

}  // namespace weft::weights
