// What `weft plan` prints: the plans of parallel/planner, and why other factorizations are impossible.
// Thread-safety: none needed.
#pragma once

#include <weft/parallel/planner/planner.h>

#include <string>

#include "tools/weft/json_text.h"

namespace weft::tool {

struct PlannedJob {
  std::string profile;  // the name of its file
  planner::Model model;
  planner::Machine machine;
  std::string program;  // whose options are those of the best plan
};

// The command that starts a job as planned, on each host of the machine.
std::string command_of(const PlannedJob& job, const planner::Plan& plan);

std::string plan_text(const PlannedJob& job, const planner::Plans& plans);
PrintedJson json_of(const PlannedJob& job, const planner::Plans& plans);

}  // namespace weft::tool
