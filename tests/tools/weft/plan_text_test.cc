#include "tools/weft/plan_text.h"

#include <gtest/gtest.h>

namespace weft::tool::plan_text_test {
namespace {

PlannedJob job() {
  PlannedJob job;
  job.profile = "model.txt";
  job.model.profile.layers.resize(3);
  job.machine = {.hosts = 2, .ranks_per_host = 4, .memory_bytes = 0x1p30};
  job.program = "./gpt";
  return job;
}

planner::Plan plan() {
  planner::Plan plan;
  plan.choice = {{.data = 2, .pipeline = 4, .order = planner::Order::data_inside}, "zb-v", 2, 3};
  plan.microbatches = 16;
  plan.step_seconds = 2;
  plan.pipeline_seconds = 1.5;
  plan.reduction_seconds = 0.5;
  plan.bubble = 0.125;
  plan.memory = {{.parameters = 0x1p20, .gradients = 0x1p20, .optimizer = 0x1p21, .activations = 0x1p22},
                 {.parameters = 0x1p19}};
  plan.first_layers = {"b", "c's"};
  return plan;
}

TEST(PlanText, TheCommandHasTheOutermostDimensionFirst) {
  EXPECT_EQ(command_of(job(), plan()),
            "weft launch --nnodes 2 --node-rank I --rendezvous HOST:PORT -n 4 ./gpt --data 2 --pipeline 4 "
            "--tensor 1 --mesh pipeline,data,tensor --schedule zb-v --chunks 2 --microbatches 16 "
            "--batch-size 96 --cut 'b,c'\\''s'");
  PlannedJob one = job();
  one.machine.hosts = 1;
  planner::Plan data;
  data.choice.grid = {.data = 4};
  EXPECT_EQ(command_of(one, data),
            "weft launch -n 4 ./gpt --data 4 --pipeline 1 --tensor 1 --microbatches 1 --batch-size 4");
}

TEST(PlanText, ShowsTheFullestRankAndTheReasonsOfRefusals) {
  planner::Plans plans{.plans = {plan()}, .global_batch = 96};
  plans.refused.push_back({{.data = 8}, "memory", planner::Memory{.parameters = 0x1p31}});
  plans.refused.push_back({{.tensor = 8}, "no layer is split over tensor ranks", std::nullopt});
  const std::string text = plan_text(job(), plans);
  for (const auto* words :
       {"model.txt: 3 layers, 2 hosts of 4 ranks with 1.0 GiB each, 96 samples in a step\n",
        "  pipeline   zb-v x2        16 of 3       2         48  12.5 %  4.0 MiB      4.0 MiB  8.0 MiB\n",
        "  mesh    {\"pipeline\", 4}, {\"data\", 2}, {\"tensor\", 1}\n", "--kept FILE",
        "\n   8         1       1  memory: a rank needs 2.0 GiB for parameters, gradients and optimizer "
        "state alone",
        "\n   1         1       8  no layer is split over tensor ranks\n"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  PlannedJob measured = job();
  measured.model.kept_bytes = {1, 2, 3};
  EXPECT_EQ(plan_text(measured, plans).find("--kept FILE"), std::string::npos);
}

TEST(PlanText, JsonHasEachPlanAndRefusal) {
  planner::Plans plans{.plans = {plan()}, .global_batch = 96};
  plans.refused.push_back({{.data = 8}, "memory", planner::Memory{.parameters = 1}});
  const GivenJson json = parse_json(on_one_line(json_of(job(), plans)));
  EXPECT_EQ(json["plans"][0]["mesh"], GivenJson({"pipeline", "data", "tensor"}));
  EXPECT_EQ(json["plans"][0]["cut"], GivenJson({"b", "c's"}));
  EXPECT_EQ(json["plans"][0]["memory"][0]["activations"], 0x1p22);
  EXPECT_EQ(json["plans"][0]["command"], command_of(job(), plan()));
  EXPECT_EQ(json["impossible"][0]["data"], 8);
  EXPECT_EQ(json["impossible"][0]["memory"]["parameters"], 1);
}

}  // namespace
}  // namespace weft::tool::plan_text_test
