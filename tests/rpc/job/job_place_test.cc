#include <weft/rpc/job/job_place.h>

#include <weft/rpc/job/environment.h>

#include "tests/support/errors.h"

namespace weft::rpc::job_place_test {
namespace {

using Variables = std::map<std::string, std::string>;

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

VariableLookup lookup_in(const Variables& variables) {
  return [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

// Returns the options on a host with address `own`. Host names that end in .unknown cannot be resolved.
MemberOptions options(const Variables& variables, const std::string& own = "10.0.0.7") {
  return options_from(lookup_in(variables), [&](const std::string& host) {
    if (host.ends_with(".unknown")) throw Error(ErrorKind::unavailable, "cannot resolve '" + host + "'");
    return host.starts_with("127.") ? host : own;
  });
}

std::string refusal(const Variables& variables, const std::string& own = "10.0.0.7") {
  const auto error = test::error_of([&] { return options(variables, own), 0; });
  if (!error) return "accepted";
  EXPECT_EQ(error->kind(), ErrorKind::invalid_argument);
  return error->what();
}

const Variables slurm{{"SLURM_JOB_ID", "70001"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_PROCID", "3"},
                      {"SLURM_NTASKS", "8"},
                      {"SLURM_STEP_NUM_TASKS", "4"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_STEP_NODELIST", "gpu[07-09,12]"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}};

const Variables openmpi{{"OMPI_COMM_WORLD_RANK", "2"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_MCA_orte_hnp_uri",
                         "525336576.0;tcp://127.0.0.1,10.0.0.1,192.168.0.1:35881;tcp6://[fd00::2]:34931"},
                        {"PMIX_NAMESPACE", "525336577"}};

TEST(HostList, ReturnsTheFirstHost) {
  using detail::first_of_hostlist;
  EXPECT_EQ(first_of_hostlist("gpu[07-09,12],cpu1"), "gpu07");
  EXPECT_EQ(first_of_hostlist("gpu[3,7]"), "gpu3");
  EXPECT_EQ(first_of_hostlist("rack[1-2]-node[05-06].site"), "rack1-node05.site");
  EXPECT_EQ(first_of_hostlist("one,two[1-2]"), "one");
  EXPECT_EQ(first_of_hostlist("alone"), "alone");
  EXPECT_EQ(first_of_hostlist(""), "");
  EXPECT_EQ(first_of_hostlist("bad[1-2"), "");
}

TEST(JobPlace, OfASlurmStep) {
  const MemberOptions worker = options(slurm);
  EXPECT_EQ(worker.name, "worker3");
  EXPECT_EQ(worker.rendezvous.rank, 3U);
  EXPECT_EQ(worker.rendezvous.world_size, 4U);  // of the step, not of the job
  EXPECT_EQ(worker.rendezvous.store, "tcp://gpu07:25001");
  EXPECT_EQ(worker.listen, std::vector<std::string>{"tcp://10.0.0.7:0"});
  const Variables host = with(slurm, {{"SLURM_PROCID", "0"}});
  EXPECT_EQ(options(host).listen, std::vector<std::string>{"tcp://gpu07:25001"});
  // The host knows its own name as an address that others cannot reach.
  EXPECT_EQ(options(host, "127.0.1.1").listen, std::vector<std::string>{"tcp://0.0.0.0:25001"});
  EXPECT_NE(options(with(slurm, {{"SLURM_STEP_ID", "1"}})).rendezvous.store, worker.rendezvous.store);
  EXPECT_NE(options(with(slurm, {{"SLURM_JOB_ID", "70002"}})).rendezvous.store, worker.rendezvous.store);
}

TEST(JobPlace, OfASlurmStepOnOneNode) {
  const MemberOptions worker = options(with(slurm, {{"SLURM_STEP_NUM_NODES", "1"}}));
  EXPECT_EQ(worker.rendezvous.store, "tcp://127.0.0.1:25001");
  EXPECT_EQ(worker.listen, std::vector<std::string>{"tcp://127.0.0.1:0"});
}

TEST(JobPlace, OfASlurmStepWhoseNodesAreNoHosts) {
  const Variables unknown = with(slurm, {{"SLURM_STEP_NODELIST", "n[1-2].unknown"}});
  EXPECT_EQ(options(unknown).rendezvous.store, "tcp://10.0.0.1:25001");
  const Variables host = with(unknown, {{"SLURM_PROCID", "0"}});
  EXPECT_EQ(options(host, "10.0.0.1").listen, std::vector<std::string>{"tcp://10.0.0.1:25001"});
  EXPECT_EQ(
      refusal(host, "10.0.0.7"),
      "the environment has no MASTER_ADDR: the host of rank 0, which Slurm does not state; cannot resolve "
      "'n1.unknown'; 10.0.0.1, from which the job was started, is not rank 0's host");
}

TEST(JobPlace, IsNotFoundInABatchScript) {
  Variables script = slurm;
  script.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(refusal(script), "the environment has no WORLD_SIZE: the number of agents in the job");
}

TEST(JobPlace, OfOpenMPI) {
  const MemberOptions worker = options(openmpi);
  EXPECT_EQ(worker.rendezvous.rank, 2U);
  EXPECT_EQ(worker.rendezvous.world_size, 4U);
  EXPECT_TRUE(worker.rendezvous.store.starts_with("tcp://10.0.0.1:")) << worker.rendezvous.store;
  EXPECT_NE(options(with(openmpi, {{"PMIX_NAMESPACE", "525336578"}})).rendezvous.store,
            worker.rendezvous.store);
  const MemberOptions one = options(with(openmpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  EXPECT_TRUE(one.rendezvous.store.starts_with("tcp://127.0.0.1:")) << one.rendezvous.store;
  // mpirun runs on another host.
  EXPECT_NE(refusal(with(openmpi, {{"OMPI_COMM_WORLD_RANK", "0"}})).find("is not rank 0's host"),
            std::string::npos);
  // mpirun runs within a Slurm job.
  EXPECT_EQ(options(with(slurm, openmpi)).rendezvous.rank, 2U);
}

// Without rank 0's address, such a process must not start a separate job.
TEST(JobPlace, OfOtherLaunchersOfMpi) {
  const Variables mpich{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}};
  const Variables address{{"MASTER_ADDR", "host0"}, {"MASTER_PORT", "20000"}};
  const MemberOptions worker = options(with(mpich, address));
  EXPECT_EQ(worker.rendezvous.rank, 2U);
  EXPECT_EQ(worker.rendezvous.world_size, 4U);
  EXPECT_EQ(worker.rendezvous.store, "tcp://host0:20000");
  EXPECT_EQ(
      refusal(mpich),
      "the environment has no MASTER_ADDR: the host of rank 0, which MPICH or Intel MPI does not state");
  EXPECT_EQ(refusal(with(mpich, {{"MPI_LOCALNRANKS", "4"}})),
            "the environment has no MASTER_PORT: a port on the host of rank 0");
  EXPECT_EQ(options(with(mpich, {{"MPI_LOCALNRANKS", "4"}, {"MASTER_PORT", "20000"}})).rendezvous.store,
            "tcp://127.0.0.1:20000");
  EXPECT_EQ(refusal(with(mpich, {{"PMI_RANK", "x"}})), "PMI_RANK='x' is not a number");
  // In a Slurm job, mpiexec starts a daemon on each node as a task; srun describes the same ranks twice.
  EXPECT_EQ(options(with(slurm, with(mpich, address))).rendezvous.rank, 2U);
  EXPECT_EQ(options(with(slurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})).rendezvous.store,
            "tcp://gpu07:25001");
  EXPECT_EQ(options(with(slurm, {{"PMIX_RANK", "3"}})).rendezvous.rank, 3U);
  for (const auto& [rank, size] :
       std::map<std::string, std::string>{{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                          {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
                                          {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}})
    EXPECT_EQ(options(with(address, {{rank, "1"}, {size, "3"}})).rendezvous.world_size, 3U) << rank;
  for (const char* rank : {"PALS_RANKID", "ALPS_APP_PE", "MPI_RANKID", "PMI_RANK", "PMIX_RANK"}) {
    EXPECT_EQ(options(with(address, {{rank, "1"}, {"WORLD_SIZE", "3"}})).rendezvous.rank, 1U) << rank;
    EXPECT_EQ(refusal(with(address, {{rank, "1"}})),
              "the environment has no WORLD_SIZE: the number of agents in the job");
  }
}

TEST(JobPlace, OfAKubernetesJob) {
  const Variables pod{{"JOB_COMPLETION_INDEX", "1"},
                      {"WORLD_SIZE", "3"},
                      {"MASTER_ADDR", "train-0.train"},
                      {"WEFT_HOST", "10.1.2.3"}};
  const MemberOptions worker = options(pod);
  EXPECT_EQ(worker.rendezvous.rank, 1U);
  EXPECT_EQ(worker.rendezvous.store, "tcp://train-0.train:29500");
  EXPECT_EQ(worker.listen, std::vector<std::string>{"tcp://10.1.2.3:0"});  // nothing is asked of the name
  EXPECT_EQ(options(with(pod, {{"JOB_COMPLETION_INDEX", "0"}})).listen,
            std::vector<std::string>{"tcp://10.1.2.3:29500"});
  EXPECT_EQ(refusal(with(pod, {{"WORLD_SIZE", ""}})),
            "the environment has no WORLD_SIZE: the number of agents in the job");
  EXPECT_EQ(refusal(with(pod, {{"MASTER_ADDR", ""}})),
            "the environment has no MASTER_ADDR: the host of rank 0, which Kubernetes does not state");
  EXPECT_EQ(refusal(with(pod, {{"JOB_COMPLETION_INDEX", "3"}})),
            "Kubernetes's rank 3 is not within a world of 3");
  EXPECT_EQ(refusal(with(pod, {{"JOB_COMPLETION_INDEX", "x"}})), "JOB_COMPLETION_INDEX='x' is not a number");
}

TEST(JobPlace, OfTFConfig) {
  const auto config = [](const std::string& cluster, const std::string& role, int index) {
    return Variables{{"TF_CONFIG", "{\"cluster\": " + cluster + ", \"task\": {\"type\": \"" + role +
                                       "\", \"index\": " + std::to_string(index) + "}}"}};
  };
  const std::string cluster =
      R"({"ps": ["p0:2222", "p1:2222"], "worker": ["w0:2223"], "chief": ["c0:2224"], "a": []})";
  const MemberOptions server = options(config(cluster, "ps", 1));
  EXPECT_EQ(server.rendezvous.rank, 3U);
  EXPECT_EQ(server.rendezvous.world_size, 4U);
  EXPECT_EQ(server.rendezvous.store, "tcp://c0:2224");
  EXPECT_EQ(server.rendezvous.metadata, (Variables{{"role", "ps"}, {"role_rank", "1"}}));
  EXPECT_EQ(options(config(cluster, "chief", 0)).listen, std::vector<std::string>{"tcp://c0:2224"});
  EXPECT_EQ(options(with(config(cluster, "ps", 0), {{"WEFT_ROLE", "server"}})).rendezvous.metadata,
            (Variables{{"role", "server"}, {"role_rank", "0"}}));
  EXPECT_EQ(refusal(config(cluster, "evaluator", 0)),
            "TF_CONFIG: the task 'evaluator' 0 is not in its cluster");
  EXPECT_EQ(refusal(config(R"({"worker": ["w0"]})", "worker", 0)),
            "TF_CONFIG: 'w0' is not an address, expected HOST:PORT");
  EXPECT_TRUE(refusal({{"TF_CONFIG", R"({"cluster": {"worker": [)"}}).starts_with("TF_CONFIG: "));
  EXPECT_TRUE(refusal({{"TF_CONFIG", R"({"cluster": {"worker": 3}})"}}).starts_with("TF_CONFIG: "));
}

TEST(JobPlace, StatedVariablesTakePrecedenceOverTheBatchSystem) {
  const MemberOptions launched = options(with(
      slurm, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "20000"}}));
  EXPECT_EQ(launched.rendezvous.rank, 1U);
  EXPECT_EQ(launched.rendezvous.store, "tcp://127.0.0.1:20000");
  EXPECT_EQ(options(with(slurm, {{"MASTER_ADDR", "login"}})).rendezvous.store, "tcp://login:25001");
  EXPECT_EQ(options(with(slurm, {{"MASTER_PORT", "20000"}})).rendezvous.store, "tcp://gpu07:20000");
  EXPECT_EQ(options(with(slurm, {{"WEFT_STORE", "file:///shared/job"}})).rendezvous.store,
            "file:///shared/job");
  EXPECT_EQ(options(with(slurm, {{"WORLD_SIZE", "9"}})).rendezvous.world_size, 9U);
}

TEST(JobPlace, StatesTheIdentityOfTheJob) {
  const auto job = [](const Variables& variables) {
    const auto metadata = options(variables).rendezvous.metadata;
    const auto found = metadata.find("weft.job");
    return found == metadata.end() ? "none" : found->second;
  };
  const Variables usual{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "20000"}};
  EXPECT_EQ(job(usual), "none");
  EXPECT_EQ(job(with(usual, {{"TORCHELASTIC_RUN_ID", "none"}})), "none");
  EXPECT_EQ(job(with(usual, {{"TORCHELASTIC_RUN_ID", "17"}})), "17");
  EXPECT_EQ(job(with(usual, {{"TORCHELASTIC_RUN_ID", "17"}, {"WEFT_JOB", "18"}})), "18");
  EXPECT_EQ(job(with(usual, {{"WEFT_ELASTIC_WORLD", "1"}, {"WEFT_JOB", "18"}})), "none");  // others may join
  EXPECT_EQ(job(slurm), "70001.0");
  EXPECT_EQ(job(openmpi), "525336577");
}

TEST(JobPlace, StartedByNamesTheLauncher) {
  const auto by = [](const Variables& variables) {
    return started_by(lookup_in(variables)).value_or("nobody");
  };
  EXPECT_EQ(by({}), "nobody");
  EXPECT_EQ(by({{"RANK", ""}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "host0"}}), "nobody");
  EXPECT_EQ(by({{"RANK", "0"}}), "a launcher");
  EXPECT_EQ(by(with(slurm, {{"RANK", "0"}})), "a launcher");
  EXPECT_EQ(by(openmpi), "OpenMPI");
  EXPECT_EQ(by(slurm), "Slurm");
  EXPECT_EQ(by(with(slurm, openmpi)), "OpenMPI");
  EXPECT_EQ(by({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}}), "MPICH or Intel MPI");
  EXPECT_EQ(by({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), "nobody");
  EXPECT_EQ(by({{"PMIX_RANK", "0"}}), "PMIx");
  EXPECT_EQ(by(with(slurm, {{"SLURM_STEP_NUM_TASKS", ""}})), "nobody");  // the script of a batch job
  EXPECT_EQ(by(with(slurm, {{"SLURM_PROCID", "x"}})), "Slurm");  // from_environment() says what is wrong
  EXPECT_EQ(by({{"JOB_COMPLETION_INDEX", "0"}}), "Kubernetes");
  EXPECT_EQ(by({{"TF_CONFIG", R"({"cluster": {}})"}}), "TF_CONFIG");
  EXPECT_EQ(by({{"TF_CONFIG", "{}"}}), "nobody");
  EXPECT_EQ(by({{"TF_CONFIG", R"({"sparseCluster": {}})"}}), "nobody");
  EXPECT_EQ(by({{"WEFT_ELASTIC_WORLD", "1"}, {"WEFT_STORE", "file:///shared/job"}}), "an elastic world");
  EXPECT_EQ(by({{"WEFT_ELASTIC_WORLD", "0"}, {"WEFT_STORE", "file:///shared/job"}}), "nobody");
}

TEST(JobPlace, AnElasticWorldNeedsNoRank) {
  const Variables comes{
      {"WEFT_ELASTIC_WORLD", "1"}, {"WEFT_STORE", "tcp://127.0.0.1:20000"}, {"WEFT_ROLE", "trainer"}};
  for (const Variables& variables : {comes, with(slurm, comes)}) {
    const MemberOptions trainer = options(variables);
    EXPECT_EQ(trainer.rendezvous.rank, Rendezvous::no_rank);
    EXPECT_FALSE(trainer.rendezvous.fixed_world);
    EXPECT_EQ(trainer.rendezvous.metadata, (Variables{{"role", "trainer"}}));
    EXPECT_TRUE(trainer.name.starts_with("trainer-")) << trainer.name;
    EXPECT_NE(trainer.name, options(variables).name);
    EXPECT_EQ(trainer.listen, std::vector<std::string>{"tcp://127.0.0.1:0"});
  }
  const MemberOptions first =
      options(with(comes, {{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"WEFT_ROLE_RANK", "0"}}));
  EXPECT_EQ(first.rendezvous.rank, 0U);
  EXPECT_FALSE(first.rendezvous.fixed_world);
  EXPECT_EQ(first.listen, std::vector<std::string>{"tcp://127.0.0.1:20000"});
  EXPECT_EQ(first.rendezvous.metadata.at("role_rank"), "0");
}

TEST(JobPlace, CredentialsAreReadFromFiles) {
  const Variables usual{
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "20000"}};
  EXPECT_EQ(options(usual).credentials, nullptr);
  EXPECT_NE(refusal(with(usual, {{"WEFT_SECRET", "/no/such/file"}})).find("/no/such/file"),
            std::string::npos);
}

}  // namespace
}  // namespace weft::rpc::job_place_test
