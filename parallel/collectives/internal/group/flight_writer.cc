#include <weft/parallel/collectives/internal/group/flight_writer.h>

#include <weft/rpc/core/when_all.h>

namespace weft::collectives {

void FlightWriter::add(const std::shared_ptr<Source>& source, std::filesystem::path folder) {
  source->folder_ = std::move(folder);
  rpc::MutexLock lock(mutex_);
  std::erase_if(sources_, [](const auto& one) { return one.expired(); });
  sources_.push_back(source);
}

rpc::Callback FlightWriter::take_all(Source& failed, rpc::Callback written) {
  std::vector<std::shared_ptr<Source>> sources;
  {
    rpc::MutexLock lock(mutex_);
    for (const auto& weak : sources_)
      if (auto source = weak.lock()) sources.push_back(std::move(source));
  }
  if (sources.empty()) return nullptr;
  std::vector<rpc::Future<Taken>> all;
  for (const auto& source : sources) {
    auto dump = source.get() == &failed
                    ? rpc::Future<FlightDump>::made(rpc::capture([&] { return failed.dump(); }))
                    : source->take_dump();
    all.push_back(std::move(dump).then([source](rpc::Result<FlightDump>&& taken) {
      return rpc::capture([&] { return Taken{source, std::move(taken).get()}; });
    }));
  }
  return [this, all = rpc::when_all(std::move(all)), written = std::move(written)]() mutable {
    std::move(all).then(
        [this, written = std::move(written)](rpc::Result<std::vector<Taken>>&& taken) mutable {
          post([taken = std::move(taken), written = std::move(written)]() mutable {
            // Two failures may take dumps of one group in one order and write them in the other order: the
            // dump that was taken last remains. If a file cannot be written, the group's error does not
            // change.
            if (taken.ok())
              for (const Taken& one : taken.value()) {
                if (one.dump.records.taken < one.source->written_) continue;
                one.source->written_ = one.dump.records.taken;
                (void)rpc::capture([&] { return write_flight_dump(one.source->folder_, one.dump); });
              }
            written();
          });
        });
  };
}

void FlightWriter::post(rpc::Callback job) {
  {
    rpc::MutexLock lock(mutex_);
    if (!ended_) {
      if (thread_ == nullptr) thread_ = std::make_unique<rpc::HandlerPool>(1);
      return thread_->post(std::move(job));
    }
  }
  job();
}

void FlightWriter::end() {
  std::unique_ptr<rpc::HandlerPool> thread;  // its destructor waits for its jobs
  rpc::MutexLock lock(mutex_);
  ended_ = true;
  thread.swap(thread_);
}

}  // namespace weft::collectives
