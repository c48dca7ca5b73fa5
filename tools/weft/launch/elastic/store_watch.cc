#include "tools/weft/launch/elastic/store_watch.h"

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/store/etcd_store.h>
#include <weft/rpc/store/file_store.h>

#include <asio/post.hpp>

#include <chrono>
#include <utility>

#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"

namespace weft::tool::launch::elastic {
namespace {

using namespace std::chrono_literals;

constexpr auto look_timeout = 5s;   // of one watch
constexpr auto look_pause = 500ms;  // after a failed one

}  // namespace

OpenedStore open_store(const std::string& url) {
  try {
    if (url.starts_with("file:")) {
      const auto file = std::make_shared<rpc::FileStore>(rpc::FileStore::path_of(url));
      return {file, [file] { file->close(); }};
    }
    const auto loop = std::make_shared<rpc::AsioLoop>();
    const auto etcd = std::make_shared<rpc::EtcdStore>(loop, rpc::EtcdStore::options_of(url));
    return {etcd, [etcd, loop] {
              etcd->close();
              loop->stop();
            }};
  } catch (const rpc::Error& error) {
    if (error.kind() != rpc::ErrorKind::invalid_argument) throw;
    throw UsageError("the job's store '" + url + "': " + printable(error.what()));
  }
}

struct StoreWatch::State : std::enable_shared_from_this<State> {
  State(asio::io_context& context, std::shared_ptr<rpc::Store> store, std::string prefix, Changed changed)
      : context(context),
        store(std::move(store)),
        prefix(std::move(prefix)),
        changed(std::move(changed)),
        pause(context) {}

  asio::io_context& context;
  const std::shared_ptr<rpc::Store> store;
  const std::string prefix;
  const Changed changed;
  std::uint64_t version = 0;
  rpc::Future<bool> watch;
  asio::steady_timer pause;
  bool closed = false;

  void look() {
    watch = store->watch(prefix, version, {.timeout = look_timeout})
                .then([context = &context, weak = weak_from_this()](rpc::Result<rpc::StoreChanges>&& result) {
                  auto changes = std::make_shared<rpc::Result<rpc::StoreChanges>>(std::move(result));
                  asio::post(*context, [weak, changes] {
                    if (const auto self = weak.lock(); self != nullptr && !self->closed)
                      self->looked(std::move(*changes));
                  });
                  return true;
                });
  }

  void looked(rpc::Result<rpc::StoreChanges>&& result) {
    try {
      const rpc::StoreChanges changes = std::move(result).get();
      version = changes.version;
      changed(changes);
    } catch (const rpc::Error& error) {
      if (error.kind() != rpc::ErrorKind::deadline_exceeded) return look_later();
    }
    if (!closed) look();
  }

  void look_later() {
    pause.expires_after(look_pause);
    pause.async_wait([weak = weak_from_this()](asio::error_code error) {
      if (const auto self = weak.lock(); !error && self != nullptr && !self->closed) self->look();
    });
  }
};

StoreWatch::StoreWatch(asio::io_context& context, std::shared_ptr<rpc::Store> store, std::string prefix,
                       Changed changed)
    : state_(std::make_shared<State>(context, std::move(store), std::move(prefix), std::move(changed))) {
  state_->look();
}

StoreWatch::~StoreWatch() {
  state_->closed = true;
  state_->pause.cancel();
  state_->watch.cancel();
}

}  // namespace weft::tool::launch::elastic
