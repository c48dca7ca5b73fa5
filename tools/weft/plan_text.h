// The output of `weft plan`: the plans of parallel/planner, and the reasons why other factorizations are
// impossible. Thread-safety: functions without state.
#pragma once

#include <weft/parallel/planner/planner.h>

#include <string>

#include "tools/weft/json_text.h"

namespace weft::tool {

struct PlannedJob {
  std::string profile;  // the name of its file
  planner::Model model;
  planner::Machine machine;
  std::string program;  // started with the options of the best plan
};

// The command that starts a job as planned, on each host of the machine.
std::string command_of(const PlannedJob& job, const planner::Plan& plan);

std::string plan_text(const PlannedJob& job, const planner::Plans& plans);
PrintedJson json_of(const PlannedJob& job, const planner::Plans& plans);

}  // namespace weft::tool
