#include "world.h"

#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/rpc/job/environment.h>

#include <c10/util/Exception.h>

namespace weft::python {

namespace {

// The store by which PyTorch's processes meet.
class MeetingStore final : public rpc::ProgramStore {
 public:
  // A clone has a connection of its own, so a call that waits delays no call of the program.
  explicit MeetingStore(c10d::Store& store) : store_(store.clone()) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::optional<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) override {
    try {
      store_->wait({key}, std::chrono::ceil<std::chrono::milliseconds>(timeout));
    } catch (const std::exception&) {
      if (!store_->check({key})) return std::nullopt;
    }
    return store_->get_to_str(key);
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

rpc::MemberOptions member(c10d::Store* store, int rank, int size) {
  const auto own = static_cast<std::size_t>(rank), all = static_cast<std::size_t>(size);
  if (store != nullptr)
    return rpc::from_program_store(std::make_shared<MeetingStore>(*store), "weft/", own, all);
  rpc::MemberOptions options = rpc::from_environment();
  TORCH_CHECK(options.rendezvous.rank == own && options.rendezvous.world_size == all,
              "weft: init_process_group(): rank ", rank, " of ", size,
              " with a HashStore, but the environment states another place: set RANK and WORLD_SIZE to those "
              "of the call");
  return options;
}

}  // namespace

World::World(c10d::Store* store, int rank, int size)
    : job(std::make_unique<rpc::Job>(member(store, rank, size), rpc::Layers{collectives::layer()})) {}

World::~World() {
  try {
    job->agent().leave().get(std::chrono::seconds(10));
  } catch (const std::exception& error) {
    TORCH_WARN("weft: leaving the job: ", error.what());
  }
  job.reset();
  callbacks->join();
}

}  // namespace weft::python
