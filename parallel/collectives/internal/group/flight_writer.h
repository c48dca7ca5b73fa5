// FlightWriter: the groups of one agent whose flight recorders are written into files when a group fails, and
// the thread that writes the files.
//
// A failure dumps all groups of the agent, because one group may wait for another. Owned by CollectivesLayer.
// Thread-safe.
#pragma once

#include <weft/parallel/collectives/flight/flight_dump.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/core/mutex.h>

#include <memory>
#include <vector>

namespace weft::collectives {

class WEFT_EXPORT FlightWriter {
 public:
  // A group. dump(): in its turn. take_dump(): on any thread.
  class Source {
   public:
    virtual ~Source() = default;
    virtual FlightDump dump() = 0;
    virtual rpc::Future<FlightDump> take_dump() = 0;

   private:
    friend class FlightWriter;
    std::filesystem::path folder_;
    std::int64_t written_ = 0;  // time of the last dump that was written; on the writer's thread
  };

  void add(const std::shared_ptr<Source>& source, std::filesystem::path folder);
  // Takes dumps of all groups, of `failed` at once in its turn. The result starts to write them, and then
  // calls `written` on the writer's thread. Null: there are no groups to dump.
  rpc::Callback take_all(Source& failed, rpc::Callback written);
  void end();  // waits for the files; later ones are written on the thread that has taken the last dump

 private:
  struct Taken {
    std::shared_ptr<Source> source;
    FlightDump dump;
  };
  void post(rpc::Callback job);

  rpc::Mutex mutex_;
  std::vector<std::weak_ptr<Source>> sources_ WEFT_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::HandlerPool> thread_ WEFT_GUARDED_BY(mutex_);  // created when needed
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::collectives
