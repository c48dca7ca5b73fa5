#include <weft/rpc/call/invoke.h>

namespace weft::rpc::detail {

void throw_missing_argument(std::size_t i, const std::string& type) {
  throw Error(ErrorKind::type_mismatch, "argument " + std::to_string(i) + " is missing: expected " + type);
}

void throw_bad_argument(std::size_t i, const Error& error) {
  throw Error(error.kind(), "argument " + std::to_string(i) + ": " + error.what());
}

void refuse_surplus(const IncomingCall& call, std::size_t parameters) {
  if (call.argument_count() <= parameters) return;
  throw Error(ErrorKind::type_mismatch, "expected " + std::to_string(parameters) + " arguments, found " +
                                            std::to_string(call.argument_count()));
}

void refuse_arguments(IncomingCall& call, std::exception_ptr why) {
  try {
    std::rethrow_exception(why);
  } catch (const Error&) {
    call.refuse(std::move(why));
  } catch (const std::exception& bad) {
    call.refuse(Error(ErrorKind::invalid_argument, std::string("malformed arguments: ") + bad.what()));
  }
}

void throw_bad_result(const Error& error, std::string_view method, const CallRoute* from) {
  throw Error(
      error.kind(),
      (from != nullptr ? from->peer_name() + ": " : "") + std::string(method) + ": result: " + error.what(),
      Execution::maybe_executed);
}

Error empty_result() {
  return {ErrorKind::handler_failed,
          "the handler returned an empty future or coroutine: it was moved from or already used"};
}

MethodEntry described_entry(std::string_view service, std::string_view short_name, std::string signature,
                            std::vector<std::string> parameters, std::string result) {
  MethodEntry entry;
  entry.name =
      service.empty() ? std::string(short_name) : std::string(service) + "." + std::string(short_name);
  entry.id = name_hash(entry.name);
  entry.service = service;
  entry.signature = std::move(signature);
  entry.signature_hash = name_hash(entry.signature);
  entry.parameters = std::move(parameters);
  entry.result = std::move(result);
  return entry;
}

}  // namespace weft::rpc::detail
