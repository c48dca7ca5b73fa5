#include <weft/parallel/collectives/nccl/internal/api.h>

#include <dlfcn.h>

namespace weft::collectives::nccl {
namespace {

using rpc::Error;
using rpc::ErrorKind;

// The library stays open as long as a table of its functions exists.
std::shared_ptr<void> open_library(const std::string& path) {
  void* library = nullptr;
  if (path.empty()) {
    library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);  // LibTorch's, if it has loaded one
    if (library == nullptr) library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  } else {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr)
    throw Error(ErrorKind::unsupported, std::string("NCCL was not found: ") + dlerror());
  return {library, [](void* opened) { dlclose(opened); }};
}

template <class R, class... A>
bool find(std::function<R(A...)>& function, const std::shared_ptr<void>& library, const char* name) {
  void* symbol = dlsym(library.get(), name);
  if (symbol == nullptr) return false;
  function = reinterpret_cast<R (*)(A...)>(symbol);
  return true;
}

}  // namespace

std::shared_ptr<const Api> Api::load(const std::string& path) {
  struct Loaded {
    std::shared_ptr<void> library;
    Api api;
  };
  auto loaded = std::make_shared<Loaded>();
  loaded->library = open_library(path);
  Api& api = loaded->api;
  const auto must = [&](auto& function, const char* name) {
    if (!find(function, loaded->library, name))
      throw Error(ErrorKind::unsupported,
                  std::string("this NCCL has no ") + name + ": weft needs 2.19 or later");
  };

  Function<Result(int*)> get_version;
  must(get_version, "ncclGetVersion");
  if (get_version(&api.version) != Result::success || api.version < 21900)
    throw Error(ErrorKind::unsupported,
                "NCCL " + api.version_text() + " is too old: weft needs 2.19 or later");

  must(api.get_unique_id, "ncclGetUniqueId");
  must(api.comm_init_rank_config, "ncclCommInitRankConfig");
  must(api.comm_finalize, "ncclCommFinalize");
  must(api.comm_destroy, "ncclCommDestroy");
  must(api.comm_abort, "ncclCommAbort");
  must(api.comm_get_async_error, "ncclCommGetAsyncError");
  must(api.get_error_string, "ncclGetErrorString");
  must(api.get_last_error, "ncclGetLastError");
  must(api.group_start, "ncclGroupStart");
  must(api.group_end, "ncclGroupEnd");
  must(api.all_reduce, "ncclAllReduce");
  must(api.reduce, "ncclReduce");
  must(api.broadcast, "ncclBroadcast");
  must(api.all_gather, "ncclAllGather");
  must(api.reduce_scatter, "ncclReduceScatter");
  must(api.send, "ncclSend");
  must(api.recv, "ncclRecv");
  must(api.red_op_create_premul_sum, "ncclRedOpCreatePreMulSum");
  must(api.red_op_destroy, "ncclRedOpDestroy");
  return {loaded, &loaded->api};
}

std::string Api::version_text() const {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

ErrorKind kind_of(Result result) {
  switch (result) {
    case Result::remote_error:
      return ErrorKind::peer_lost;
    case Result::system_error:
      return ErrorKind::unavailable;
    case Result::timeout:
      return ErrorKind::deadline_exceeded;
    case Result::invalid_argument:
      return ErrorKind::invalid_argument;
    case Result::invalid_usage:
      return ErrorKind::failed_precondition;
    default:
      return ErrorKind::internal;
  }
}

Error error_of(const Api& api, Result result, Comm* comm, const std::string& what) {
  std::string text = "NCCL: " + what + ": ";
  const char* name = api.get_error_string(result);
  text += name != nullptr ? name : "error " + std::to_string(static_cast<int>(result));
  if (const char* last = api.get_last_error(comm); last != nullptr && *last != '\0')
    text += std::string(" (") + last + ")";
  return {kind_of(result), text};
}

}  // namespace weft::collectives::nccl
