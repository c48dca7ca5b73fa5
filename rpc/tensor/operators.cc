#include <weft/rpc/tensor/operators.h>

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/tensor/dtype.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

namespace weft::tensor {
namespace {

using c10::IValue;
using c10::TypeKind;
using rpc::Error;
using rpc::ErrorKind;

// How the values of a schema's type are sent.
class ArgumentType {
 public:
  ArgumentType(c10::TypePtr type, c10::TypePtr real) : type_(std::move(type)) {
    if (type_->kind() == TypeKind::OptionalType) {
      optional_ = true;
      type_ = type_->expectRef<c10::OptionalType>().getElementType();
      if (real->kind() == TypeKind::OptionalType)
        real = real->expectRef<c10::OptionalType>().getElementType();
    }
    if (real->kind() == TypeKind::ScalarTypeType) {
      text_ = "str";
      dtype_ = true;
    } else if (type_->kind() == TypeKind::ListType) {
      const auto& element = type_->expectRef<c10::ListType>().getElementType();
      element_ = std::make_shared<const ArgumentType>(element, element);
      text_ = "[" + element_->text() + "]";
    } else if (real->kind() == TypeKind::LayoutType || real->kind() == TypeKind::MemoryFormatType) {
      travels_ = false;
    } else {
      text_ = plain_text();
    }
    if (element_ != nullptr && !element_->travels_) travels_ = false;
    if (optional_) text_ += "?";
  }

  bool travels() const { return travels_; }
  const std::string& text() const { return text_; }

  IValue decode(const rpc::ValueReader& value) const {
    if (value.is_nil()) {
      if (type_->kind() == TypeKind::TensorType && !optional_) return at::Tensor();
      if (!optional_) value.mismatch(text_);
      return {};
    }
    // A caller may declare a parameter as an optional, or as a variant of number types. Codecs wrap such a
    // value in a variant.
    if (value.kind() == rpc::ValueKind::variant && (optional_ || type_->kind() == TypeKind::NumberType))
      return decode(value.variant_value());
    if (dtype_) return static_cast<std::int64_t>(dtype_from_name(value.get_text()));
    switch (type_->kind()) {
      case TypeKind::TensorType:
        return rpc::Codec<at::Tensor>::decode(value);
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return value.get_int();
      case TypeKind::FloatType:
        return value.kind() == rpc::ValueKind::int_ ? static_cast<double>(value.get_int()) : value.get_real();
      case TypeKind::BoolType:
        return value.get_bool();
      case TypeKind::StringType:
        return std::string(value.get_text());
      case TypeKind::NumberType:
        return number(value);
      case TypeKind::ListType:
        return list(value);
      default:
        value.mismatch(text_);
    }
  }

  void encode(rpc::ValueWriter writer, const IValue& value) const {
    if (value.isNone()) return writer.set_nil();
    if (value.isTensor()) return rpc::Codec<at::Tensor>::encode(writer, value.toTensor());
    if (value.isInt()) return writer.set_int(value.toInt());
    if (value.isDouble()) return writer.set_real(value.toDouble());
    if (value.isBool()) return writer.set_bool(value.toBool());
    if (value.isString()) return writer.set_text(value.toStringRef());
    if (value.isList()) {
      const auto items = value.toListRef();
      rpc::ListWriter list = writer.set_list(items.size());
      for (std::size_t i = 0; i < items.size(); ++i) element_->encode(list[i], items[i]);
      return;
    }
    throw Error(ErrorKind::unsupported, "a result of type " + value.tagKind() + " cannot be sent");
  }

 private:
  std::string plain_text() {
    switch (type_->kind()) {
      case TypeKind::TensorType:
        return "tensor";
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return "i64";
      case TypeKind::FloatType:
        return "f64";
      case TypeKind::BoolType:
        return "bool";
      case TypeKind::StringType:
        return "str";
      case TypeKind::NumberType:
        return "<i64|f64|bool>";
      default:
        travels_ = false;
        return "";
    }
  }

  static IValue number(const rpc::ValueReader& value) {
    switch (value.kind()) {
      case rpc::ValueKind::boolean:
        return value.get_bool();
      case rpc::ValueKind::real:
        return value.get_real();
      default:
        return value.get_int();
    }
  }

  IValue list(const rpc::ValueReader& value) const {
    const TypeKind kind = element_->type_->kind();
    const bool ints = kind == TypeKind::IntType || kind == TypeKind::SymIntType;
    c10::impl::GenericList list(type_->expectRef<c10::ListType>().getElementType());
    list.reserve(value.size());
    for (std::size_t i = 0; i < value.size(); ++i)
      list.push_back(ints                          ? IValue(value.int_at(i))
                     : kind == TypeKind::FloatType ? IValue(value.real_at(i))
                                                   : element_->decode(value.at(i)));
    return list;
  }

  c10::TypePtr type_;
  bool optional_ = false;
  bool dtype_ = false;
  bool travels_ = true;
  std::string text_;
  std::shared_ptr<const ArgumentType> element_;  // of a list
};

// A permitted operator, with the data for serving it.
struct Operator {
  c10::OperatorHandle handle;
  std::vector<ArgumentType> parameters, results;
  std::size_t travelling = 0;  // parameters that a caller may pass; those after them have their defaults
};

std::string describe(const Operator& allowed) {
  std::string text = "(";
  for (std::size_t i = 0; i < allowed.travelling; ++i)
    text += (i > 0 ? "," : "") + allowed.parameters[i].text();
  text += ")->";
  if (allowed.results.empty()) return text + "void";
  if (allowed.results.size() == 1) return text + allowed.results.front().text();
  for (std::size_t i = 0; i < allowed.results.size(); ++i)
    text += (i == 0 ? "(" : ",") + allowed.results[i].text();
  return text + ")";
}

Operator find(std::string_view name) {
  const std::size_t dot = name.find('.');
  const std::string base(name.substr(0, dot)),
      overload(dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1));
  const auto handle = c10::Dispatcher::singleton().findSchema({base, overload});
  if (!handle)
    throw Error(ErrorKind::not_found, "LibTorch has no operator '" + std::string(name) +
                                          "' (an overload is named after a dot, as in aten::add.Tensor)");
  Operator found{*handle, {}, {}, 0};
  const c10::FunctionSchema& schema = handle->schema();
  bool prefix = true;
  for (const c10::Argument& argument : schema.arguments()) {
    found.parameters.emplace_back(argument.type(), argument.real_type());
    prefix = prefix && found.parameters.back().travels();
    if (prefix) {
      ++found.travelling;
    } else if (!argument.default_value()) {
      throw Error(ErrorKind::unsupported, std::string(name) + ": parameter '" + argument.name() +
                                              "' of type " + argument.type()->str() +
                                              " cannot be sent and has no default");
    }
  }
  for (const c10::Argument& result : schema.returns()) {
    found.results.emplace_back(result.type(), result.real_type());
    if (!found.results.back().travels())
      throw Error(ErrorKind::unsupported,
                  std::string(name) + ": its result of type " + result.type()->str() + " cannot be sent");
  }
  return found;
}

torch::jit::Stack decode_arguments(const Operator& allowed, const rpc::IncomingCall& call) {
  const auto& arguments = allowed.handle.schema().arguments();
  if (call.argument_count() > allowed.travelling)
    throw Error(ErrorKind::type_mismatch, "expected at most " + std::to_string(allowed.travelling) +
                                              " arguments, found " + std::to_string(call.argument_count()));
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string which = "argument " + std::to_string(i) + " (" + arguments[i].name() + ")";
    if (i < call.argument_count()) {
      try {
        stack.push_back(allowed.parameters[i].decode(call.argument(i)));
      } catch (const Error& error) {
        throw Error(error.kind(), which + ": " + error.what());
      }
    } else if (arguments[i].default_value()) {
      stack.push_back(*arguments[i].default_value());
    } else {
      throw Error(ErrorKind::type_mismatch, which + " is missing: expected " + allowed.parameters[i].text());
    }
  }
  return stack;
}

void run(const Operator& allowed, rpc::IncomingCall& call) {
  auto made = rpc::capture([&] {
    auto stack = decode_arguments(allowed, call);
    rpc::ContextScope scope(call.context());
    try {
      allowed.handle.callBoxed(stack);
    } catch (const c10::Error& error) {
      throw Error(ErrorKind::invalid_argument, error.what_without_backtrace());
    }
    return stack;
  });
  if (!made.ok()) return call.fail(made.error());
  torch::jit::Stack stack = std::move(made).get();
  if (stack.size() == 1 && stack.front().isTensor())
    return rpc::detail::answer(call, rpc::Result<at::Tensor>(std::move(stack.front()).toTensor()));
  call.reply([&](rpc::ValueWriter writer) {
    if (stack.empty()) return writer.set_nil();
    if (stack.size() == 1) return allowed.results.front().encode(writer, stack.front());
    rpc::ListWriter list = writer.set_list(stack.size());
    for (std::size_t i = 0; i < stack.size(); ++i) allowed.results[i].encode(list[i], stack[i]);
  });
}

}  // namespace

void allow_operators(rpc::Agent& agent, const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    auto allowed = std::make_shared<const Operator>(find(name));
    const std::string signature = describe(*allowed);
    std::vector<std::string> parameters;
    for (std::size_t i = 0; i < allowed->travelling; ++i) parameters.push_back(allowed->parameters[i].text());
    rpc::MethodEntry entry = rpc::detail::described_entry({}, name, signature, std::move(parameters),
                                                          signature.substr(signature.find(")->") + 3));
    entry.run = [allowed](std::shared_ptr<rpc::IncomingCall> call) { run(*allowed, *call); };
    agent.core()->methods().serve(std::move(entry));
  }
}

}  // namespace weft::tensor
