// Checkpoints: decides which files a trainer writes and reads, so that a job that was killed can resume.
//
// In synchronous mode all trainers are at the same step. Each trainer writes its state after a step into its
// own file, FOLDER/STEP/TRAINER. A job resumes from the newest step with the files of all trainers. When a
// trainer writes the file of a saved step, all trainers have written their files of the previous saved step.
// The trainer then removes its file of the saved step before the previous one. One task uses the object.
#pragma once

#include <weft/rpc/job/job.h>

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
