#include "tools/weft/launch/elastic/store_watch.h"

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/job/store/etcd_store.h>
#include <weft/rpc/job/store/file_store.h>

#include <chrono>
#include <utility>

#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"

namespace weft::tool::launch::elastic {
namespace {

using namespace std::chrono_literals;

constexpr auto look_timeout = 5s;   // the timeout of one watch
constexpr auto look_pause = 500ms;  // the pause after a watch that failed

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
  State(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store, std::string prefix,
        Changed changed)
      : loop(std::move(loop)),
        store(std::move(store)),
        prefix(std::move(prefix)),
        changed(std::move(changed)) {}

  const std::shared_ptr<rpc::Loop> loop;
  const std::shared_ptr<rpc::Store> store;
  const std::string prefix;
  const Changed changed;
  std::uint64_t version = 0;
  rpc::Future<bool> watch;
  rpc::Loop::TimerId pause = 0;
  bool closed = false;

  void look() {
    watch = store->watch(prefix, version, {.timeout = look_timeout})
                .then([loop = loop, weak = weak_from_this()](rpc::Result<rpc::StoreChanges>&& result) {
                  loop->post([weak, result = std::move(result)]() mutable {
                    if (const auto self = weak.lock(); self != nullptr && !self->closed)
                      self->looked(std::move(result));
                  });
                  return true;
                });
  }

  void looked(rpc::Result<rpc::StoreChanges>&& result) {
    rpc::StoreChanges changes;
    try {
      changes = std::move(result).get();
    } catch (const rpc::Error& error) {
      return error.kind() == rpc::ErrorKind::deadline_exceeded ? look() : look_later();
    }
    version = changes.version;
    changed(changes);
    if (!closed) look();
  }

  void look_later() {
    pause = loop->schedule(loop->now() + look_pause, [weak = weak_from_this()] {
      if (const auto self = weak.lock(); self != nullptr && !self->closed) self->look();
    });
  }
};

StoreWatch::StoreWatch(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store, std::string prefix,
                       Changed changed)
    : state_(
          std::make_shared<State>(std::move(loop), std::move(store), std::move(prefix), std::move(changed))) {
  state_->look();
}

StoreWatch::~StoreWatch() {
  state_->closed = true;
  state_->loop->cancel(state_->pause);
  state_->watch.cancel();
}

}  // namespace weft::tool::launch::elastic
