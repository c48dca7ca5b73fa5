#include "tools/weft/plan_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/weft/bytes.h"
#include "tools/weft/shell.h"

namespace weft::tool {
namespace {

using planner::Balance;
using planner::Grid;
using planner::Memory;
using planner::Order;
using planner::Plan;
using planner::Refusal;

using TableRow = std::vector<std::string>;

std::string decimal(const char* format, double value) {
  char text[400];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string seconds_text(double seconds) { return decimal("%.4g", seconds); }

double state_bytes(const Memory& memory) { return memory.total() - memory.activations; }

// The rows as a table: columns are separated by two spaces and right-aligned, except for the last one.
std::string columns_of(const std::vector<TableRow>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const TableRow& row : rows)
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const TableRow& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      text += (i == 0 ? "" : "  ") + std::string(std::max(widths[i], row[i].size()) - row[i].size(), ' ') +
              row[i];
    text += '\n';
  }
  return text;
}

// The dimensions of a mesh, the outermost first.
std::vector<std::pair<std::string, int>> mesh_of(const Grid& grid) {
  std::vector<std::pair<std::string, int>> mesh = {{"data", grid.data}, {"pipeline", grid.pipeline}};
  if (grid.order == Order::data_inside) std::swap(mesh[0], mesh[1]);
  mesh.emplace_back("tensor", grid.tensor);
  return mesh;
}

std::string mesh_text(const Grid& grid) {
  std::string text;
  for (const auto& [name, size] : mesh_of(grid))
    text += (text.empty() ? "{\"" : ", {\"") + name + "\", " + std::to_string(size) + "}";
  return text;
}

std::string schedule_text(const planner::Choice& choice) {
  if (choice.grid.pipeline == 1) return "-";
  return choice.chunks == 1 ? choice.schedule : choice.schedule + " x" + std::to_string(choice.chunks);
}

std::string table_of(const planner::Plans& plans) {
  std::vector<TableRow> rows = {{"data", "pipeline", "tensor", "outermost", "schedule", "micro-batches",
                                 "step s", "samples/s", "bubble", "state", "activations", "memory"}};
  for (const Plan& plan : plans.plans) {
    const Grid& grid = plan.choice.grid;
    const Memory& memory = plan.fullest();
    rows.push_back({std::to_string(grid.data), std::to_string(grid.pipeline), std::to_string(grid.tensor),
                    grid.data == 1 || grid.pipeline == 1 ? "-" : mesh_of(grid).front().first,
                    schedule_text(plan.choice),
                    std::to_string(plan.microbatches) + " of " + std::to_string(plan.choice.microbatch),
                    seconds_text(plan.step_seconds), decimal("%.4g", plans.global_batch / plan.step_seconds),
                    decimal("%.1f %%", 100 * plan.bubble), bytes_text(state_bytes(memory)),
                    bytes_text(memory.activations), bytes_text(memory.total())});
  }
  return columns_of(rows);
}

std::string best_text(const PlannedJob& job, const Plan& plan) {
  const Memory& memory = plan.fullest();
  std::string text = "best: data " + std::to_string(plan.choice.grid.data) + ", pipeline " +
                     std::to_string(plan.choice.grid.pipeline) + ", tensor " +
                     std::to_string(plan.choice.grid.tensor) + "\n";
  text += "  step    " + seconds_text(plan.pipeline_seconds) + " s of computation and messages (" +
          seconds_text(plan.tensor_seconds) + " s of them for tensor all-reduces), and " +
          seconds_text(plan.reduction_seconds) + " s for the reduction of the gradients\n";
  text += "  memory  parameters " + bytes_text(memory.parameters) + ", gradients " +
          bytes_text(memory.gradients) + ", optimizer " + bytes_text(memory.optimizer) + ", activations " +
          bytes_text(memory.activations) + " on the fullest rank\n";
  text += "  mesh    " + mesh_text(plan.choice.grid) + "\n";
  if (!plan.first_layers.empty())
    text += "  stages  " + std::to_string(plan.first_layers.size() + 1) + ", balanced by " +
            std::string(plan.choice.balance == Balance::time ? "time" : "memory") + "\n";
  return text + "  run     " + command_of(job, plan) + "\n";
}

std::string why_text(const Refusal& refusal) {
  if (!refusal.memory) return refusal.why;
  const Memory& needed = *refusal.memory;
  if (needed.activations == 0)
    return "memory: a rank needs " + bytes_text(needed.total()) +
           " for parameters, gradients and optimizer state alone";
  return "memory: a rank needs " + bytes_text(needed.total()) + ", of which " +
         bytes_text(state_bytes(needed)) + " are parameters, gradients and optimizer state";
}

std::string refused_text(const std::vector<Refusal>& refused) {
  constexpr std::size_t most = 20;
  std::vector<TableRow> rows = {{"data", "pipeline", "tensor", "why"}};
  for (std::size_t i = 0; i < std::min(most, refused.size()); ++i)
    rows.push_back({std::to_string(refused[i].grid.data), std::to_string(refused[i].grid.pipeline),
                    std::to_string(refused[i].grid.tensor), why_text(refused[i])});
  std::string text = "impossible:\n" + columns_of(rows);
  if (refused.size() > most) text += "and " + std::to_string(refused.size() - most) + " more (--json)\n";
  return text;
}

PrintedJson json_of_memory(const Memory& memory) {
  return {{"parameters", memory.parameters},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"activations", memory.activations}};
}

PrintedJson json_of_grid(const Grid& grid) {
  return {{"data", grid.data}, {"pipeline", grid.pipeline}, {"tensor", grid.tensor}};
}

PrintedJson json_of_plan(const PlannedJob& job, const Plan& plan) {
  PrintedJson json = json_of_grid(plan.choice.grid);
  PrintedJson mesh = PrintedJson::array(), memory = PrintedJson::array();
  for (const auto& [name, size] : mesh_of(plan.choice.grid)) mesh.push_back(name);
  for (const Memory& each : plan.memory) memory.push_back(json_of_memory(each));
  add_field(json, "mesh", std::move(mesh));
  add_field(json, "schedule", plan.choice.schedule);
  add_field(json, "chunks", plan.choice.chunks);
  add_field(json, "microbatches", plan.microbatches);
  add_field(json, "microbatch", plan.choice.microbatch);
  add_field(json, "balance", plan.choice.balance == Balance::time ? "time" : "memory");
  add_field(json, "cut", plan.first_layers);
  add_field(json, "step_seconds", plan.step_seconds);
  add_field(json, "pipeline_seconds", plan.pipeline_seconds);
  add_field(json, "reduction_seconds", plan.reduction_seconds);
  add_field(json, "tensor_seconds", plan.tensor_seconds);
  add_field(json, "bubble", plan.bubble);
  add_field(json, "memory", std::move(memory));
  add_field(json, "command", command_of(job, plan));
  return json;
}

}  // namespace

std::string command_of(const PlannedJob& job, const Plan& plan) {
  const planner::Choice& choice = plan.choice;
  std::string command = "weft launch ";
  if (job.machine.hosts > 1)
    command += "--nnodes " + std::to_string(job.machine.hosts) + " --node-rank I --rendezvous HOST:PORT ";
  command += "-n " + std::to_string(job.machine.ranks_per_host) + " " + job.program;
  command += " --data " + std::to_string(choice.grid.data) + " --pipeline " +
             std::to_string(choice.grid.pipeline) + " --tensor " + std::to_string(choice.grid.tensor);
  if (choice.grid.order == Order::data_inside) command += " --mesh pipeline,data,tensor";
  if (choice.grid.pipeline > 1) command += " --schedule " + choice.schedule;
  if (choice.chunks > 1) command += " --chunks " + std::to_string(choice.chunks);
  command += " --microbatches " + std::to_string(plan.microbatches) + " --batch-size " +
             std::to_string(choice.grid.data * plan.microbatches * choice.microbatch);
  std::string cut;
  for (const std::string& layer : plan.first_layers) cut += (cut.empty() ? "" : ",") + layer;
  return cut.empty() ? command : command + " --cut " + shell_word(cut);
}

std::string plan_text(const PlannedJob& job, const planner::Plans& plans) {
  const planner::Machine& machine = job.machine;
  std::string text = job.profile + ": " + std::to_string(job.model.profile.layers.size()) + " layers, " +
                     std::to_string(machine.hosts) + (machine.hosts == 1 ? " host of " : " hosts of ") +
                     std::to_string(machine.ranks_per_host) + " ranks";
  if (std::isfinite(machine.memory_bytes)) text += " with " + bytes_text(machine.memory_bytes) + " each";
  text += ", " + std::to_string(plans.global_batch) + " samples in a step\n";
  if (!plans.plans.empty()) {
    text += "\n" + table_of(plans) + "\n" + best_text(job, plans.plans.front());
    if (job.model.kept_bytes.empty())
      text +=
          "  Activations are the outputs of layers. --kept FILE states all bytes that layers keep for "
          "backward.\n";
  }
  if (!plans.refused.empty()) text += "\n" + refused_text(plans.refused);
  return text;
}

PrintedJson json_of(const PlannedJob& job, const planner::Plans& plans) {
  PrintedJson best = PrintedJson::array(), refused = PrintedJson::array();
  for (const Plan& plan : plans.plans) best.push_back(json_of_plan(job, plan));
  for (const Refusal& refusal : plans.refused) {
    PrintedJson each = json_of_grid(refusal.grid);
    add_field(each, "why", why_text(refusal));
    if (refusal.memory) add_field(each, "memory", json_of_memory(*refusal.memory));
    refused.push_back(std::move(each));
  }
  return {{"profile", job.profile},
          {"hosts", job.machine.hosts},
          {"ranks_per_host", job.machine.ranks_per_host},
          {"global_batch", plans.global_batch},
          {"choices", plans.choices},
          {"simulated", plans.simulated},
          {"plans", std::move(best)},
          {"impossible", std::move(refused)}};
}

}  // namespace weft::tool
