// Checkpoints: which files a trainer writes and reads, so that a job that was killed goes on where it was.
//
// In synchronous mode all trainers are at the same step, so each writes what it sees of it into a file of its
// own, FOLDER/STEP/TRAINER, and a job goes on from the newest step of which every trainer's file is there.
// Whoever writes a step knows that everybody has written the one before, and removes its file of the one
// before that. One task uses it.
#pragma once

#include <weft/rpc/membership/job.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "parameter_server/settings.h"

class Checkpoints {
 public:
  Checkpoints(const Settings& settings, const weft::rpc::Job& job);
  bool asked_for() const { return !folder_.empty(); }

  std::optional<std::int64_t> newest() const;
  bool due(std::int64_t step) const;
  std::filesystem::path file(std::int64_t step) const { return file(step, trainer_); }
  void written(std::int64_t step) const;

 private:
  std::filesystem::path file(std::int64_t step, std::size_t trainer) const;
  bool whole(std::int64_t step) const;

  const std::filesystem::path folder_;
  const std::int64_t every_;
  const std::size_t trainer_, trainers_;  // from 1 to trainers_
};
