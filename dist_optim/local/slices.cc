// reslice() divides every state into pieces: a field of a parameter over a range of its elements. It then
// assembles a parameter's field piece by piece from its first element to its last. A count (the number of
// steps) is a piece without elements, which is the same for the whole range.
#include <weft/dist_optim/local/slices.h>

#include <weft/dist_optim/local/optimizer_spec.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>

namespace weft::dist_optim {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw rpc::Error(rpc::ErrorKind::invalid_argument, why); }

struct Range {
  std::int64_t begin = 0, end = std::numeric_limits<std::int64_t>::max();
};

struct Name {
  std::string parameter;
  std::optional<Range> slice;  // none: the whole parameter
};

// "bucket0[4:8]"; a name without such an ending is the name of a whole parameter.
Name parse(const std::string& text) {
  const auto open = text.rfind('['), colon = text.find(':', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || colon == std::string::npos || text.back() != ']') return {text, {}};
  Range range;
  const auto number = [&](std::size_t first, std::size_t last, std::int64_t& to) {
    const auto read = std::from_chars(text.data() + first, text.data() + last, to);
    return read.ec == std::errc() && read.ptr == text.data() + last;
  };
  if (!number(open + 1, colon, range.begin) || !number(colon + 1, text.size() - 1, range.end))
    return {text, {}};
  return {text.substr(0, open), range};
}

struct Piece {
  Range range;
  at::Tensor elements;  // one dimension
};
struct Field {
  std::vector<Piece> pieces;
  std::vector<std::pair<Range, at::Tensor>> counts;
};
using Fields = std::map<std::string, Field>;  // by name

std::map<std::string, Fields> take_apart(const std::vector<OptimizerState>& states) {
  std::map<std::string, Fields> parameters;
  for (const OptimizerState& state : states) {
    for (const auto& [key, tensor] : state.tensors) {
      const auto slash = key.rfind('/');
      if (slash == std::string::npos || !tensor.defined() || tensor.layout() != at::kStrided)
        refuse("reslice: " + key + " is not a dense tensor of a parameter's state");
      const Name name = parse(key.substr(0, slash));
      Field& field = parameters[name.parameter][key.substr(slash + 1)];
      Range range = name.slice.value_or(Range{});
      if (tensor.dim() == 0 && tensor.scalar_type() == at::kLong) {
        field.counts.emplace_back(range, tensor);
        continue;
      }
      if (!name.slice) range.end = tensor.numel();
      if (range.end - range.begin != tensor.numel())
        refuse("reslice: " + key + " has " + std::to_string(tensor.numel()) + " elements, expected " +
               std::to_string(range.end - range.begin));
      field.pieces.push_back({range, tensor.reshape({-1})});
    }
  }
  return parameters;
}

// The elements in the range; nullopt if no piece has any of them.
std::optional<at::Tensor> gather(const std::string& name, const std::vector<Piece>& pieces,
                                 const Range& range) {
  std::vector<at::Tensor> parts;
  std::int64_t at = range.begin;
  while (at < range.end) {
    const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& one) {
      return one.range.begin <= at && at < one.range.end;
    });
    if (piece == pieces.end()) break;
    const std::int64_t end = std::min(range.end, piece->range.end);
    parts.push_back(piece->elements.slice(0, at - piece->range.begin, end - piece->range.begin));
    at = end;
  }
  if (at == range.end && !parts.empty()) return at::cat(parts);
  const bool any = std::any_of(pieces.begin(), pieces.end(), [&](const Piece& one) {
    return one.range.begin < range.end && range.begin < one.range.end;
  });
  if (any) refuse("reslice: no state has element " + std::to_string(at) + " of " + name);
  return std::nullopt;
}

std::optional<at::Tensor> count_of(const std::string& name, const Field& field, const Range& range) {
  std::optional<at::Tensor> found;
  for (const auto& [of, count] : field.counts) {
    if (of.end <= range.begin || range.end <= of.begin) continue;
    if (found && found->item<std::int64_t>() != count.item<std::int64_t>())
      refuse("reslice: the slices of " + name + " have stepped " +
             std::to_string(found->item<std::int64_t>()) + " and " +
             std::to_string(count.item<std::int64_t>()) + " times");
    found = count;
  }
  return found;
}

}  // namespace

Parameter slice_of(const Parameter& parameter, std::int64_t begin, std::int64_t end) {
  const at::Tensor& whole = parameter.tensor;
  const std::string name = parameter.name + "[" + std::to_string(begin) + ":" + std::to_string(end) + "]";
  if (!whole.defined() || whole.layout() != at::kStrided || !whole.is_contiguous())
    refuse("slice " + name + ": the parameter is not dense and contiguous");
  if (begin < 0 || end < begin || end > whole.numel())
    refuse("slice " + name + ": the parameter has " + std::to_string(whole.numel()) + " elements");
  return {name, whole.variable_data().view({-1}).slice(0, begin, end), true};
}

OptimizerState reslice(const std::vector<OptimizerState>& from, const std::vector<Parameter>& to) {
  OptimizerState all;
  for (const OptimizerState& state : from) {
    if (&state == &from.front()) {
      all.optimizer = state.optimizer;
      all.learning_rates = state.learning_rates;
    }
    if (state.optimizer != all.optimizer)
      refuse("reslice: the states belong to several optimizers: " + all.optimizer + " and " +
             state.optimizer);
    if (state.learning_rates != all.learning_rates) refuse("reslice: the states' learning rates differ");
  }
  OptimizerSpec spec;
  spec.name = all.optimizer;
  if (!spec.is_elementwise())
    refuse("reslice: " + spec.name + " steps whole rows, expected an elementwise optimizer");
  const auto parameters = take_apart(from);
  for (const Parameter& parameter : to) {
    const Name name = parameter.slice ? parse(parameter.name) : Name{parameter.name, {}};
    const auto known = parameters.find(name.parameter);
    if (known == parameters.end()) continue;
    const Range range = name.slice.value_or(Range{0, parameter.tensor.numel()});
    for (const auto& [field_name, field] : known->second) {
      const std::string key = parameter.name + "/" + field_name;
      if (const auto count = count_of(parameter.name, field, range)) all.tensors[key] = count->clone();
      if (const auto elements = gather(parameter.name, field.pieces, range))
        all.tensors[key] = elements->reshape(parameter.tensor.sizes());
    }
  }
  return all;
}

}  // namespace weft::dist_optim
