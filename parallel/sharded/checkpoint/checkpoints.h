// Checkpoints: a training state that is split over the ranks of a group, saved in the background and resumed
// on any number of ranks.
//
//   sharded::Checkpoints checkpoints(group, "run/checkpoints");
//   if (const auto step = checkpoints.latest()) notes = checkpoints.load(*step, state);
//   ...
//   auto saved = checkpoints.save(step, state);  // returns when the state is copied; training continues
//
// Each rank writes its slices into one file; rank 0 completes the checkpoint when all files are on the disk
// (checkpoint_folder.h). A crash, a full disk or a lost rank at any time does not change the earlier
// checkpoints. load() checks the checksums of all data that it reads.
//
// Each rank has one object. All ranks call save(), latest() and remove_after() in the same order, as
// collectives. These functions block: do not call them on an agent's threads. The agent must live until the
// futures complete; if the agent is closed earlier, the futures fail with the agent's error. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/sharded/checkpoint/checkpoint_folder.h>
#include <weft/parallel/sharded/checkpoint/cpu_copy.h>
#include <weft/parallel/sharded/checkpoint/sliced_state.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/core/task.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

struct SaveReport;   // of a rank to rank 0
struct SaveVerdict;  // of rank 0 to a rank

// The options must be equal on all ranks.
struct CheckpointOptions {
  int keep = 2;  // complete checkpoints to keep, at least 1; a completed save removes the older ones
  // The maximum time for which a rank waits for the other ranks after it has written its file, and in
  // latest(). The other ranks may be slower, or may not have called save() yet. When the time expires, the
  // group of these checkpoints fails.
  std::chrono::nanoseconds timeout = std::chrono::hours{1};
};

class WEFT_EXPORT Checkpoints {
 public:
  // All ranks of the group call the constructor, which creates a separate group for this object. folder: on a
  // file system that all ranks share; the first save creates it. Only one job at a time may write into it.
  Checkpoints(const collectives::Group& group, std::filesystem::path folder, CheckpointOptions options = {});
  // Waits for a save in flight.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Copies the state into host memory and returns; the caller may then change the state. If another save is
  // in flight, save() first waits for it. The memory is kept for the next save. The future completes when all
  // ranks have written and synced their files and the checkpoint is complete. If the save fails, the futures
  // of all ranks have the same error, which names the rank and the cause, and training may continue:
  // invalid_argument if the state cannot be saved (for example if no rank has some of its elements),
  // failed_precondition if the step is not after the newest complete one, failed_precondition or
  // resource_exhausted if a file cannot be written. If a rank is lost, or misses the timeout, this save and
  // all later ones fail with the group's error.
  rpc::Future<void> save(std::int64_t step, const SlicedState& state);

  // The step of the newest complete checkpoint, after a save in flight has completed. Rank 0 reads the folder
  // for all ranks. nullopt: there is no checkpoint.
  std::optional<std::int64_t> latest();
  // Removes the complete checkpoints after `step`, so that training can go back to it and save again.
  void remove_after(std::int64_t step);

  // The names of a checkpoint's tensors, in order. Reads the headers of its files.
  std::vector<std::string> names(std::int64_t step) const;
  // The caller sets the names, sizes, begins, dtypes and memory of `wanted`. load() fills in the values, and
  // returns the notes. load() is not a collective: ranks may load the same elements or different ones, or not
  // call load(). It reads the headers of files, starting with the file of this rank's number, until it has
  // found all elements, and then reads only the wanted elements, in blocks of 1 MiB. failed_precondition,
  // which names the file: the file is missing or damaged, or is not the one that was written.
  // invalid_argument, which names the tensor: the checkpoint lacks the tensor or some of its elements, or has
  // other sizes or another dtype. Values are unspecified after an error.
  std::map<std::string, std::string> load(std::int64_t step, SlicedState& wanted) const;

 private:
  rpc::Task<void> write(SaveReport report, std::map<std::string, std::string> notes);
  std::vector<SaveVerdict> begin(const std::vector<SaveReport>& reports);
  void complete(const std::filesystem::path& folder, const std::vector<SaveReport>& reports,
                std::map<std::string, std::string> notes);
  void wait();  // for a save in flight

  const CheckpointOptions options_;
  const std::filesystem::path path_;
  CheckpointFolder folder_;
  const collectives::Group group_;
  CpuCopy host_;              // the state that is being written
  rpc::Future<void> saving_;  // empty: no save in flight
  rpc::HandlerPool writer_{1};
};

}  // namespace weft::sharded
