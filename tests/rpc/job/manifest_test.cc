// The manifests of examples/k8s: the results of started_by() and from_environment() for the variables that
// the manifests and the operators of Kubernetes and Kubeflow set in each pod. The test repeats the operators'
// part from their sources (training-operator 1.x: pkg/controller.v1/pytorch/envvar.go and
// pkg/controller.v1/tensorflow/tensorflow.go).
#include <weft/rpc/job/environment.h>
#include <weft/rpc/job/job_place.h>

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <sstream>

namespace weft::rpc::manifest_test {
namespace {

using ManifestVariables = std::map<std::string, std::string>;

std::string text_of(const std::string& name) {
  std::ifstream file(std::string(WEFT_SOURCE_DIR) + "/examples/k8s/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return text.str();
}

// The first match's first group, from `begin` on.
std::string value_in(const std::string& text, const std::string& pattern, const std::string& begin = "") {
  const std::string part = text.substr(std::min(text.find(begin), text.size()));
  std::smatch match;
  EXPECT_TRUE(std::regex_search(part, match, std::regex(pattern))) << pattern;
  return match.empty() ? "" : match[1].str();
}
std::uint64_t number_in(const std::string& text, const std::string& pattern, const std::string& begin = "") {
  return std::stoul(value_in(text, pattern, begin));
}

// The variables of a manifest's containers. WEFT_SECRET is a file that this host lacks.
ManifestVariables variables_in(const std::string& text, const std::string& address) {
  ManifestVariables variables{{"WEFT_INSECURE", "1"}};
  const auto each = [&](const std::string& pattern, const auto& take) {
    const std::regex expression(pattern);
    for (std::sregex_iterator match(text.begin(), text.end(), expression), end; match != end; ++match)
      take(*match);
  };
  each(R"re(\{name: (\w+), value: "?([^"}]*)"?\})re", [&](const std::smatch& match) {
    if (match[1] != "WEFT_SECRET") variables[match[1]] = match[2];
  });
  each(R"re(name: (\w+)\s+valueFrom: \{fieldRef: \{fieldPath: status\.podIP\}\})re",
       [&](const std::smatch& match) { variables[match[1]] = address; });
  return variables;
}

struct Pod {
  std::string started_by;
  MemberOptions options;
};
Pod pod_with(const ManifestVariables& variables) {
  const VariableLookup lookup = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const LocalAddress towards = [](const std::string&) -> std::string {
    throw Error(ErrorKind::unavailable, "no name is known yet");
  };
  return {started_by(lookup).value_or("nobody"), options_from(lookup, towards)};
}

TEST(Manifest, OfAnIndexedJob) {
  const std::string text = text_of("indexed_job.yaml");
  const std::uint64_t pods = number_in(text, R"(completions: (\d+))");
  EXPECT_EQ(number_in(text, R"(parallelism: (\d+))"), pods);
  for (std::uint64_t index = 0; index < pods; ++index) {
    ManifestVariables variables = variables_in(text, "10.1.0." + std::to_string(index));
    variables["JOB_COMPLETION_INDEX"] = std::to_string(index);
    const Pod pod = pod_with(variables);
    EXPECT_EQ(pod.started_by, "Kubernetes");
    EXPECT_EQ(pod.options.rendezvous.rank, index);
    EXPECT_EQ(pod.options.rendezvous.world_size, pods);
    EXPECT_EQ(pod.options.rendezvous.store, "tcp://train-0.train:29500");
    EXPECT_EQ(pod.options.listen.front(),
              "tcp://10.1.0." + std::to_string(index) + (index == 0 ? ":29500" : ":0"));
  }
}

TEST(Manifest, OfAPyTorchJob) {
  const std::string text = text_of("pytorch_job.yaml");
  const std::string job = value_in(text, R"(metadata:\s+name: (\w+))");
  const std::uint64_t workers = number_in(text, R"(replicas: (\d+))", "Worker:");
  ASSERT_EQ(number_in(text, R"(replicas: (\d+))", "Master:"), 1U);
  EXPECT_EQ(value_in(text, R"(containers:\s+- name: (\w+))"), "pytorch");
  for (std::uint64_t rank = 0; rank <= workers; ++rank) {
    ManifestVariables variables = variables_in(text, "10.1.0.9");
    variables["MASTER_PORT"] = "23456";
    variables["MASTER_ADDR"] = job + "-master-0";
    variables["WORLD_SIZE"] = std::to_string(workers + 1);
    variables["RANK"] = std::to_string(rank);
    variables["PYTHONUNBUFFERED"] = "1";
    variables["PET_NNODES"] = std::to_string(workers + 1);
    variables["PET_NODE_RANK"] = std::to_string(rank);
    const Pod pod = pod_with(variables);
    EXPECT_EQ(pod.started_by, "a launcher");
    EXPECT_EQ(pod.options.name, "worker" + std::to_string(rank));
    EXPECT_EQ(pod.options.rendezvous.rank, rank);
    EXPECT_EQ(pod.options.rendezvous.world_size, workers + 1);
    EXPECT_EQ(pod.options.rendezvous.store, "tcp://train-master-0:23456");
    EXPECT_EQ(pod.options.listen.front(), rank == 0 ? "tcp://10.1.0.9:23456" : "tcp://10.1.0.9:0");
  }
}

TEST(Manifest, OfATFJob) {
  const std::string text = text_of("tf_job.yaml");
  const std::string job = value_in(text, R"(metadata:\s+name: (\w+))");
  const std::map<std::string, std::uint64_t> replicas{
      {"ps", number_in(text, R"(replicas: (\d+))", "PS:")},
      {"worker", number_in(text, R"(replicas: (\d+))", "Worker:")}};
  EXPECT_EQ(value_in(text, R"(containers:\s+- name: (\w+))"), "tensorflow");
  std::string cluster;
  for (const auto& [role, number] : replicas) {
    std::string addresses;
    for (std::uint64_t i = 0; i < number; ++i)
      addresses +=
          (i == 0 ? "\"" : ",\"") + job + "-" + role + "-" + std::to_string(i) + ".default.svc:2222\"";
    cluster += (cluster.empty() ? "\"" : ",\"") + role + "\":[" + addresses + "]";
  }
  std::uint64_t rank = 0;
  for (const std::string role : {"worker", "ps"})
    for (std::uint64_t index = 0; index < replicas.at(role); ++index, ++rank) {
      ManifestVariables variables = variables_in(text, "10.1.0.9");
      variables["TF_CONFIG"] = "{\"cluster\":{" + cluster + "},\"task\":{\"type\":\"" + role +
                               "\",\"index\":" + std::to_string(index) + "},\"environment\":\"cloud\"}";
      const Pod pod = pod_with(variables);
      EXPECT_EQ(pod.started_by, "TF_CONFIG");
      EXPECT_EQ(pod.options.rendezvous.rank, rank);
      EXPECT_EQ(pod.options.rendezvous.world_size, 6U);
      EXPECT_EQ(pod.options.rendezvous.store, "tcp://train-worker-0.default.svc:2222");
      EXPECT_EQ(pod.options.rendezvous.metadata,
                (ManifestVariables{{"role", role}, {"role_rank", std::to_string(index)}}));
      EXPECT_EQ(pod.options.listen.front(), rank == 0 ? "tcp://10.1.0.9:2222" : "tcp://10.1.0.9:0");
    }
}

TEST(Manifest, OfServersAndTrainers) {
  const std::string text = text_of("parameter_server.yaml");
  const std::size_t trainers = text.find("name: trainer");
  ASSERT_NE(trainers, std::string::npos);
  ManifestVariables server = variables_in(text.substr(0, trainers), "10.1.0.9");
  EXPECT_NE(text.find("RANK=${HOSTNAME##*-} WEFT_NAME=$HOSTNAME"), std::string::npos);
  server["RANK"] = "1";
  server["WEFT_NAME"] = "server-1";
  EXPECT_EQ(pod_with(server).started_by, "a launcher");
  EXPECT_EQ(pod_with(server).options.rendezvous.rank, 1U);
  EXPECT_EQ(pod_with(server).options.rendezvous.metadata.at("role"), "server");
  const Pod trainer = pod_with(variables_in(text.substr(trainers), "10.1.0.8"));
  EXPECT_EQ(trainer.started_by, "an elastic world");
  EXPECT_EQ(trainer.options.rendezvous.rank, Rendezvous::no_rank);
  EXPECT_EQ(trainer.options.rendezvous.store, "tcp://server-0.server:29500");
}

}  // namespace
}  // namespace weft::rpc::manifest_test
