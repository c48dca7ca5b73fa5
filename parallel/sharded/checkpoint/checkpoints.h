// Checkpoints: a training state that is split over the ranks of a group, saved in the background and resumed
// on any number of ranks.
//
//   sharded::Checkpoints checkpoints(group, "run/checkpoints");
//   if (const auto step = checkpoints.latest()) notes = checkpoints.load(*step, state);
//   ...
//   auto saved = checkpoints.save(step, state);  // returns when the state is copied; training goes on
//
// Each rank writes its slices into one file; rank 0 completes the checkpoint when all files are on the disk
// (checkpoint_folder.h). A crash, a full disk or a lost rank at any moment leaves the earlier checkpoints as
// they were. All checksums of what is read are checked.
//
// One per rank; save(), latest() and remove_after() are called on all ranks in the same order, as collectives
// are. They block, and so are not for an agent's threads. The agent must live until the futures complete; if
// it is closed before, they fail with its error. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/sharded/checkpoint/checkpoint_folder.h>
#include <weft/parallel/sharded/checkpoint/host_state.h>
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

// The same on all ranks.
struct CheckpointOptions {
  int keep = 2;  // complete checkpoints; a save that completes removes the older ones; at least 1
  // For the other ranks, from when a rank has written its file (or calls latest()). They may be slower, or
  // may not have called save() yet. Past it the group of these checkpoints fails.
  std::chrono::nanoseconds timeout = std::chrono::hours{1};
};

class WEFT_EXPORT Checkpoints {
 public:
  // On all ranks of the group, of which it splits off its own. The folder is on a file system that all ranks
  // share; the first save makes it. One job at a time writes into it.
  Checkpoints(const collectives::Group& group, std::filesystem::path folder, CheckpointOptions options = {});
  // Waits for a save in flight.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Copies the state into host memory and returns; the caller may then change it. The memory is kept for the
  // next save. A save in flight is waited for first. The future completes when the checkpoint is complete and
  // durable; then it is complete on all ranks. It fails on all ranks with one error, which names the rank and
  // the cause, and training may go on: invalid_argument for a state that cannot be saved (also one of which
  // no rank has some elements), failed_precondition for a step that is not after the newest complete one,
  // failed_precondition or resource_exhausted where a file cannot be written. If a rank is lost, or misses
  // the timeout, it fails with the group's error, as do later saves.
  rpc::Future<void> save(std::int64_t step, const SlicedState& state);

  // The newest complete checkpoint, also of a save in flight; rank 0 looks for all. nullopt: none.
  std::optional<std::int64_t> latest();
  // Removes the complete checkpoints after `step`, so that training can go back to it and save again.
  void remove_after(std::int64_t step);

  // The names of a checkpoint's tensors, in order. Reads the headers of its files.
  std::vector<std::string> names(std::int64_t step) const;
  // Fills the values of `wanted`, whose names, sizes, begins, dtypes and memory the caller gives, and returns
  // the notes. The ranks may want the same elements, or different ones, or not call it at all. Reads the
  // headers of files, beginning with the one that this rank would have written, until it has all; of their
  // elements it reads what is wanted, in blocks of 1 MiB. failed_precondition, naming the file: it is
  // missing, damaged, or another than was written. invalid_argument, naming the tensor: the checkpoint does
  // not have it, or lacks elements, or its sizes or dtype are others. Values are unspecified after an error.
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
  HostState host_;            // what is being written
  rpc::Future<void> saving_;  // empty: no save in flight
  rpc::HandlerPool writer_{1};
};

}  // namespace weft::sharded
