// Checkpoints of several ranks: a checkpoint can be loaded on any number of ranks, and a failed save leaves
// the earlier ones.
#include <weft/parallel/sharded/checkpoint/checkpoints.h>

#include <weft/dist_optim/checkpoint/tensor_file.h>
#include <weft/parallel/sharded/checkpoint/export_tensors.h>
#include <weft/parallel/sharded/checkpoint/slice_file.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <sstream>

#include "tests/parallel/sharded/checkpoint/states.h"

namespace weft::sharded::testing::checkpoints_test {
std::atomic<bool> folders_fail_to_sync = false;
}

// In place of the function of libc.
extern "C" int fsync(int fd) {
  struct stat about{};
  if (weft::sharded::testing::checkpoints_test::folders_fail_to_sync && ::fstat(fd, &about) == 0 &&
      S_ISDIR(about.st_mode)) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace weft::sharded::testing {
namespace checkpoints_test {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
void expect_failed(rpc::Future<void> saved, ErrorKind kind, const std::vector<std::string>& words) {
  test::expect_error([&] { return got(std::move(saved)), 0; }, kind, words);
}
std::string read_bytes(const fs::path& path) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  return all.str();
}
void put_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class ShardedCheckpoints : public ::testing::Test {
 protected:
  Folder folder;
  const fs::path& path() const { return folder.path; }
  fs::path file(std::int64_t step, int rank, int ranks) const {
    return CheckpointFolder::file_of(CheckpointFolder(path()).of_step(step), static_cast<std::size_t>(rank),
                                     static_cast<std::size_t>(ranks));
  }
};

TEST_F(ShardedCheckpoints, AreLoadedOnAnyNumberOfRanks) {
  for (int from = 1; from <= 4; ++from) {
    Folder own;
    {
      Job job(from, own.path);
      EXPECT_EQ(job.latest(), std::nullopt);
      job.save_even(7);
      EXPECT_EQ(job.latest(), 7);
    }
    EXPECT_EQ(names_in(own.path), (std::vector<std::string>{"step-000000007", "writer.lock"}));
    for (int to = 1; to <= 4; ++to) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      Job job(to, own.path);
      EXPECT_EQ(job.latest(), 7);
      job.expect_holds(7);
      SlicedState nothing;
      EXPECT_EQ(job[0].load(7, nothing).at("rank"), "0") << "the notes are those of rank 0";
    }
  }
}

// Several ranks have the same elements of a tensor, all or some of them.
TEST_F(ShardedCheckpoints, CopiesAndOverlapsAreLoaded) {
  const Whole whole = whole_state(1);
  const auto split = [](int rank) -> Split {
    return [rank](const std::string& name, std::int64_t n) -> std::optional<Range> {
      if (name == "two" && rank != 2) return std::nullopt;       // on one rank only
      if (name == "two" || name == "large") return Range{0, n};  // "large": on all
      return Range{rank * n / 4, (rank + 2) * n / 4};            // overlaps
    };
  };
  {
    Job job(3, path());
    job.save(1, [&](int rank) { return state_of(whole, split(rank)); });
  }
  std::uintmax_t large = 0;
  for (int rank = 0; rank < 3; ++rank) large += fs::file_size(file(1, rank, 3)) > 1'000'000;
  EXPECT_EQ(large, 1U) << "a copy is written once";
  Job job(2, path());
  job.each([&](int rank) {
    SlicedState wanted = blank(state_of(whole, [&](const std::string&, std::int64_t n) {
      return Range{rank * n / 3, std::min(n, rank * n / 3 + n / 2 + 1)};
    }));
    job[rank].load(1, wanted);
    expect_loaded(wanted, whole);
  });
}

// Each rank has some columns of two matrices, and half of these columns. Another rank has the other half.
SlicedState columns_of(const Whole& whole, int rank, int ranks) {
  const std::int64_t parts = std::max(1, ranks / 2), part = rank % parts;
  SlicedState state;
  for (const char* const name : {"large", "of/Double"}) {
    const at::Tensor& tensor = whole.at(name);
    const std::int64_t width = tensor.size(1), first = width * part / parts,
                       length = width * (part + 1) / parts - first;
    const at::Tensor columns = tensor.narrow(1, first, length).flatten();
    const std::int64_t middle = columns.numel() / 2 + 1, begin = rank >= parts ? middle : 0,
                       end = rank >= parts || ranks == 1 ? columns.numel() : middle;
    state.tensors[name] = {tensor.sizes().vec(), begin, columns.slice(0, begin, end).clone(),
                           Runs{first, length, width}};
  }
  return state;
}

TEST_F(ShardedCheckpoints, ColumnsAreLoadedOnAnyNumberOfRanks) {
  const Whole whole = whole_state(1);
  for (const int from : {1, 2, 4, 6}) {
    Folder own;
    {
      Job job(from, own.path);
      job.save(1, [&](int rank) { return columns_of(whole, rank, from); });
    }
    for (const int to : {1, 4, 6}) {
      SCOPED_TRACE(std::to_string(from) + " ranks, then " + std::to_string(to));
      Job job(to, own.path);
      job.each([&](int rank) {
        const SlicedState expected = columns_of(whole, rank, to);
        SlicedState wanted = blank(expected);
        job[rank].load(1, wanted);
        for (const auto& [name, tensor] : wanted.tensors)
          expect_same(tensor.values, expected.tensors.at(name).values, name);
        SlicedState range{{{"large", {{300, 1001}, 990 * rank, at::zeros({200'000})}}}, {}};
        job[rank].load(1, range);
        expect_loaded(range, whole);
      });
    }
    export_tensors(own.path, 1, own.path / "out.safetensors");
    for (const auto& [name, tensor] : dist_optim::read_tensor_file(own.path / "out.safetensors").tensors)
      expect_same(tensor, whole.at(name), name);
  }
}

TEST_F(ShardedCheckpoints, TheCallerMayChangeItsTensorsAfterSave) {
  Job job(2, path());
  for (const std::int64_t step : {1, 2, 3}) {  // two saves in flight: the second waits for the first
    std::vector<rpc::Future<void>> saved(2);
    job.each([&](int rank) {
      SlicedState state = state_of(whole_state(step), even_split(rank, 2));
      state.notes["step"] = std::to_string(step);
      auto& checkpoints = job[rank];
      auto first = checkpoints.save(step * 10, state);
      for (auto& [name, tensor] : state.tensors) tensor.values.zero_();
      const SlicedState next = state_of(whole_state(step), even_split(rank, 2));
      auto second = checkpoints.save(step * 10 + 1, {next.tensors, {{"step", "x"}}});
      for (const auto& [name, tensor] : next.tensors) tensor.values.zero_();
      got(std::move(first)), got(std::move(second));
    });
    for (const std::int64_t number : {step * 10, step * 10 + 1})
      job.each([&](int rank) {
        SlicedState wanted = blank(state_of(whole_state(step), even_split(rank, 2)));
        job[rank].load(number, wanted);
        expect_loaded(wanted, whole_state(step));
      });
  }
}

// Also tensors that are not contiguous. The memory of the previous save does not fit any more.
TEST_F(ShardedCheckpoints, StatesMayChangeTheirShapes) {
  Job job(1, path());
  const auto save_and_load = [&](std::int64_t step, const at::Tensor& values) {
    const SlicedState state{{{"x", {{values.numel()}, 0, values}}}, {}};
    got(job[0].save(step, state));
    for (const bool spread : {false, true}) {
      const at::Tensor to = spread ? at::zeros({values.numel(), 2}, values.options()).select(1, 0)
                                   : at::zeros({values.numel()}, values.options());
      SlicedState wanted{{{"x", {{values.numel()}, 0, to}}}, {}};
      job[0].load(step, wanted);
      expect_same(to, values, std::to_string(step));
    }
  };
  save_and_load(1, at::arange(10, at::kFloat));
  save_and_load(2, at::arange(20, at::kFloat));
  save_and_load(3, at::arange(20, at::kInt));
  save_and_load(4, at::arange(40, at::kInt).view({20, 2}).select(1, 1));
  save_and_load(5, at::ones({20}).requires_grad_());
}

TEST_F(ShardedCheckpoints, TheNewestCheckpointsAreKept) {
  Job job(2, path(), {.keep = 2});
  for (const std::int64_t step : {std::int64_t{1}, std::int64_t{5}, std::int64_t{9}, 1'000'000'000'000})
    job.save_even(step);
  EXPECT_EQ(names_in(path()),
            (std::vector<std::string>{"step-000000009", "step-1000000000000", "writer.lock"}));
  job.expect_holds(9);
  job.expect_holds(1'000'000'000'000);
  test::expect_error([&] { return Job(1, path(), {.keep = 0}), 0; }, "keep is 0");
}

// Training that goes back to an earlier step calls remove_after() first.
TEST_F(ShardedCheckpoints, AStepThatIsNotAfterTheNewestIsRefused) {
  Job job(2, path());
  job.save_even(10);
  job.save_even(20);
  for (const std::int64_t step : {20, 15})
    for (auto& saved : job.begin_save(step, [](int) { return SlicedState{}; }))
      expect_failed(std::move(saved), ErrorKind::failed_precondition,
                    {"checkpoint of step " + std::to_string(step), "step-000000020", "remove_after()"});
  EXPECT_EQ(job.latest(), 20);
  job.each([&](int rank) { job[rank].remove_after(10); });
  EXPECT_EQ(job.latest(), 10);
  job.save_even(15);
  job.expect_holds(15);
  job.expect_holds(10);
}

TEST_F(ShardedCheckpoints, LeftoversOfACrashAreRemoved) {
  const fs::path without_manifest = path() / "step-000000030", part = path() / "step-000000040.part-12ab",
                 notes = path() / "step-notes", other = path() / "step-000000050.txt";
  for (const auto& left : {without_manifest, part, notes, other}) {
    fs::create_directories(left);
    put_bytes(left / "rank-0-of-2.safetensors", "half");
  }
  Job job(2, path());
  EXPECT_EQ(job.latest(), std::nullopt);
  EXPECT_TRUE(fs::exists(part)) << "only a save removes";
  job.save_even(30);
  EXPECT_EQ(names_in(path()),
            (std::vector<std::string>{"step-000000030", "step-000000050.txt", "step-notes", "writer.lock"}));
  job.expect_holds(30);
}

TEST_F(ShardedCheckpoints, OnlyOneJobAtATimeMayWrite) {
  auto first = std::make_unique<Job>(2, path());
  first->save_even(1);
  const fs::path in_use = path() / "step-000000002.part-of-the-first";
  fs::create_directories(in_use);
  Job second(2, path());
  for (auto& saved : second.begin_save(2, [](int) { return SlicedState{}; }))
    expect_failed(std::move(saved), ErrorKind::failed_precondition, {"another job writes checkpoints"});
  EXPECT_TRUE(fs::exists(in_use));
  second.expect_holds(1);
  first.reset();
  second.save_even(2);
  EXPECT_FALSE(fs::exists(in_use));
  second.expect_holds(2);
}

// A file exceeds the limit on one rank, as on a full disk.
TEST_F(ShardedCheckpoints, AWriteThatFailsOnOneRankFailsOnAll) {
  Job job(3, path());
  job.save_even(1);
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{3'000'000, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  auto all = job.begin_save(2, [](int rank) {
    const std::int64_t n = rank == 1 ? 1'000'000 : 10;
    return SlicedState{{{"of " + std::to_string(rank), {{n}, 0, at::ones({n})}}}, {}};
  });
  for (auto& saved : all)
    expect_failed(std::move(saved), ErrorKind::resource_exhausted,
                  {"checkpoint of step 2: rank 1: ", "rank-1-of-3.safetensors.part", "File too large"});
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, before);
  EXPECT_EQ(names_in(path()), (std::vector<std::string>{"step-000000001", "writer.lock"}));
  job.expect_holds(1);
  job.save_even(3);
  job.expect_holds(3);
}

// All ranks get the error of one rank, and the next save succeeds.
TEST_F(ShardedCheckpoints, AStateThatCannotBeSavedFailsOnAllRanks) {
  Job job(3, path());
  std::int64_t step = 0;
  const auto expect_refused = [&](const SlicedState& bad, const std::vector<std::string>& words) {
    for (auto& saved : job.begin_save(++step, [&](int rank) { return rank == 1 ? bad : SlicedState{}; }))
      expect_failed(std::move(saved), ErrorKind::invalid_argument, words);
    EXPECT_EQ(job.latest(), std::nullopt);
  };
  expect_refused({{{"x", {{2}, 0, at::Tensor()}}}, {}}, {"rank 1", "tensor 'x'", "not defined"});
  expect_refused({{{"x", {{2, 2}, 0, at::ones({2, 2})}}}, {}}, {"rank 1", "tensor 'x'", "one dimension"});
  expect_refused({{{"x", {{2}, 0, at::empty({2}, at::TensorOptions(at::ScalarType::Bits8))}}}, {}},
                 {"rank 1", "'x'", "Bits8"});
  expect_refused({{{"x", {{4}, 0, at::ones({2})}}}, {}}, {"tensor 'x'", "no rank has element 2"});
  expect_refused({{{"x", {{4}, 3, at::ones({2})}}}, {}}, {"rank 1", "no elements 3 to 5"});
  expect_refused({{}, {{"weft.x", ""}}}, {"rank 1", "'weft.x'"});
  expect_refused({{{"\xff", {{1}, 0, at::ones({1})}}}, {}}, {"rank 1", "UTF-8"});
  std::vector<rpc::Future<void>> saved(3);
  job.each(
      [&](int rank) { saved[static_cast<std::size_t>(rank)] = job[rank].save(rank == 2 ? 51 : 50, {}); });
  for (auto& one : saved)
    expect_failed(std::move(one), ErrorKind::invalid_argument, {"step 50", "rank 2 saves step 51"});
  job.save_even(++step);
  job.expect_holds(step);
}

TEST_F(ShardedCheckpoints, LoadingMissingDataIsRefused) {
  Job job(2, path());
  job.save_even(3);
  const auto refusal = [&](ErrorKind kind, std::int64_t step, const SlicedTensor& tensor,
                           const std::string& name) {
    SlicedState wanted{{{name, tensor}}, {}};
    const auto error = error_of([&] { return job[1].load(step, wanted); });
    EXPECT_TRUE(error && error->kind() == kind) << (error ? error->what() : "nothing was thrown");
    return error ? std::string(error->what()) : "";
  };
  const auto expect_refused = [&](const SlicedTensor& tensor, const std::string& name,
                                  const std::string& word) {
    const std::string text = refusal(ErrorKind::invalid_argument, 3, tensor, name);
    EXPECT_NE(text.find("'" + name + "'"), std::string::npos) << text;
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  expect_refused({{4}, 0, at::zeros({4})}, "none", "step-000000003: the checkpoint has no tensor");
  expect_refused({{0}, 0, at::zeros({0})}, "none", "has no tensor");
  expect_refused({{3}, 0, at::zeros({3})}, "two", "is Float [2], expected Float [3]");
  expect_refused({{2}, 0, at::zeros({2}, at::kInt)}, "two", "is Float [2], expected Int [2]");
  expect_refused({{2}, 1, at::zeros({2})}, "two", "has no elements 1 to 3");
  expect_refused({{2}, -1, at::zeros({2})}, "two", "has no elements -1 to 1");
  expect_refused({{2}, 0, at::zeros({2, 1})}, "two", "one dimension");
  expect_refused({{2}, 0, at::Tensor()}, "two", "not defined");
  EXPECT_NE(refusal(ErrorKind::failed_precondition, 4, {{2}, 0, at::zeros({2})}, "two").find("the steps: 3"),
            std::string::npos);
}

// A file with fewer elements than the tensor, as a manifest of another version could have it.
TEST_F(ShardedCheckpoints, MissingElementsAreNamed) {
  CheckpointFolder own(path());
  const fs::path unfinished = own.begin(1);
  const std::map<std::string, SlicedTensor> tensors{{"x", {{10}, 2, at::ones({5})}}};
  own.complete(unfinished,
               {1, {write_slices(CheckpointFolder::file_of(unfinished, 0, 1), tensors, {"x"})}, {}});
  Job job(1, path());
  SlicedState wanted{{{"x", {{10}, 3, at::zeros({6})}}}, {}};
  test::expect_error([&] { return job[0].load(1, wanted); }, ErrorKind::invalid_argument,
                     "lacks the elements 7 to 9 of tensor 'x'");
}

TEST_F(ShardedCheckpoints, DamagedFilesAreRefused) {
  Job job(2, path());
  job.save_even(1);
  job.save_even(2);
  const Whole whole = whole_state(2);
  const auto load = [&] {
    SlicedState wanted = blank(state_of(whole, even_split(0, 1)));
    const auto error = error_of([&] { return job[0].load(2, wanted); });
    if (!error) {
      expect_loaded(wanted, whole);
      return std::string();
    }
    EXPECT_EQ(error->kind(), ErrorKind::failed_precondition) << error->what();
    return std::string(error->what());
  };
  const fs::path one = file(2, 1, 2), manifest = one.parent_path() / "manifest.safetensors";
  EXPECT_EQ(load(), "");
  for (const fs::path& damaged : {one, manifest}) {
    const std::string bytes = read_bytes(damaged);
    std::mt19937 random(5);
    for (int round = 0; round < 200; ++round) {
      std::string flipped = bytes;
      const std::size_t at = round < 60 ? static_cast<std::size_t>(round) : random() % bytes.size();
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
      put_bytes(damaged, flipped);
      EXPECT_NE(load().find(damaged.string()), std::string::npos) << "byte " << at;
    }
    for (const std::size_t length : {std::size_t{0}, std::size_t{9}, bytes.size() / 2, bytes.size() - 1}) {
      put_bytes(damaged, bytes.substr(0, length));
      EXPECT_NE(load().find(damaged.string()), std::string::npos) << length << " bytes";
    }
    put_bytes(damaged, bytes + "x");
    EXPECT_NE(load().find(damaged.string()), std::string::npos);
    // Valid files that belong to another step or to another program.
    put_bytes(damaged, read_bytes(damaged == one ? file(1, 1, 2)
                                                 : file(1, 1, 2).parent_path() / "manifest.safetensors"));
    EXPECT_NE(load().find(damaged.string()), std::string::npos);
    dist_optim::write_tensor_file(damaged, {{{"two", at::ones({2})}}, {}, false});
    EXPECT_NE(load().find(damaged.string()), std::string::npos);
    fs::remove(damaged);
    EXPECT_NE(load().find(damaged == one ? damaged.string() : "no complete checkpoint"), std::string::npos);
    put_bytes(damaged, bytes);
    EXPECT_EQ(load(), "");
  }
}

// A load reads only the blocks of the files that have requested elements.
TEST_F(ShardedCheckpoints, OnlyTheNeededBlocksAreRead) {
  const Whole whole{{"x", at::arange(4'000'000, at::kInt)}};
  Job job(2, path());
  job.save(1, [&](int rank) { return state_of(whole, even_split(rank, 2)); });
  std::string bytes = read_bytes(file(1, 1, 2));
  bytes[bytes.size() - 3'000'000] ^= 1;  // element 3,250,000
  put_bytes(file(1, 1, 2), bytes);
  for (const auto& [begin, end] : {Range{0, 2'500'000}, Range{3'600'000, 4'000'000}}) {
    SlicedState wanted{{{"x", {{4'000'000}, begin, at::zeros({end - begin}, at::kInt)}}}, {}};
    job[0].load(1, wanted);
    expect_loaded(wanted, whole);
  }
  fs::remove(file(1, 1, 2));
  SlicedState first{{{"x", {{4'000'000}, 0, at::zeros({2'000'000}, at::kInt)}}}, {}};
  job[0].load(1, first);
  EXPECT_TRUE(error_of([&] { return job[1].load(1, first); })) << "rank 1 begins with its own file";
}

TEST_F(ShardedCheckpoints, AreExportedAsOneFile) {
  Whole whole;
  for (const auto& [name, tensor] : whole_state(4)) whole["model/" + name] = tensor;
  whole["optimizer/x"] = at::ones({3});
  {
    Job job(3, path());
    job.save(4, [&](int rank) {
      SlicedState state = state_of(whole, even_split(rank, 3));
      state.notes["epoch"] = "2";
      return state;
    });
  }
  const fs::path out = path() / "out.safetensors";
  export_tensors(path(), 4, out, "model/");
  const auto file = dist_optim::read_tensor_file(out);
  EXPECT_TRUE(file.proven);
  EXPECT_EQ(file.notes, (std::map<std::string, std::string>{{"epoch", "2"}}));
  const Whole expected = whole_state(4);
  ASSERT_EQ(file.tensors.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(file.tensors.contains(name)) << name;
    EXPECT_EQ(file.tensors.at(name).sizes(), tensor.sizes()) << name;
    expect_same(file.tensors.at(name), tensor, name);
  }
  export_tensors(path(), 4, out);
  EXPECT_EQ(dist_optim::read_tensor_file(out).tensors.size(), whole.size());
  EXPECT_TRUE(error_of([&] { return export_tensors(path(), 5, out), 0; }));
  put_bytes(this->file(4, 1, 3), "damaged");
  EXPECT_TRUE(error_of([&] { return export_tensors(path(), 4, out), 0; }));
  EXPECT_EQ(dist_optim::read_tensor_file(out).tensors.size(), whole.size()) << "the file before stays";
}

TEST_F(ShardedCheckpoints, ALostRankFailsTheSaveOfTheOthers) {
  Job job(3, path());
  job.save_even(1);
  std::vector<rpc::Future<void>> saved;
  for (const int rank : {0, 2}) saved.push_back(job[rank].save(2, {}));
  job.company.end(1);
  for (auto& one : saved) expect_failed(std::move(one), ErrorKind::peer_lost, {"worker1"});
  expect_failed(job[0].save(3, {}), ErrorKind::peer_lost, {"worker1"});
}

// The writer's thread ends cleanly when its agent, or the object, goes while a save is in flight.
TEST_F(ShardedCheckpoints, AnAgentMayEndWhileASaveIsInFlight) {
  Job job(2, path());
  job.save_even(1);
  auto saved = job[0].save(2, state_of(whole_state(2), even_split(0, 2)));  // rank 1 does not save
  job.company.end(0);
  EXPECT_TRUE(error_of([&] { return got(std::move(saved)), 0; }));
  auto other = job[1].save(2, {});
  job.company.end(1);
  EXPECT_TRUE(error_of([&] { return got(std::move(other)), 0; }));
  job.checkpoints.clear();
  Job next(2, path());
  EXPECT_EQ(next.latest(), 1);
  next.save_even(2);
}

TEST_F(ShardedCheckpoints, TheDestructorWaitsForASave) {
  {
    Job job(2, path());
    auto saved = job.begin_save(5, [](int rank) {
      SlicedState state = state_of(whole_state(5), even_split(rank, 2));
      state.notes["step"] = "5";
      return state;
    });
    job.each([&](int rank) { job.checkpoints[static_cast<std::size_t>(rank)].reset(); });
    for (auto& one : saved) EXPECT_TRUE(one.ready());
  }
  Job(1, path()).expect_holds(5);
}

TEST_F(ShardedCheckpoints, ARankThatDoesNotSaveIsNamedAtTheDeadline) {
  Job job(2, path(), {.timeout = std::chrono::milliseconds{50}});
  expect_failed(job[0].save(1, {}), ErrorKind::deadline_exceeded, {"worker1"});
}

// A continuation of a save may begin the next one.
TEST_F(ShardedCheckpoints, AContinuationMaySaveAgain) {
  Job job(1, path());
  test::Handover<rpc::Future<void>> next;
  job[0].save(1, {}).then([&](rpc::Result<void>&&) { next.give(job[0].save(2, {})); });
  got(next.take());
  EXPECT_EQ(job.latest(), 2);
}

TEST_F(ShardedCheckpoints, ASaveWhoseFolderCannotBeSyncedLeavesNoCheckpoint) {
  Job job(2, path());
  job.save_even(1);
  folders_fail_to_sync = true;
  test::expect_error([&] { job.save_even(2); }, "cannot be synced");
  folders_fail_to_sync = false;
  EXPECT_EQ(job.latest(), 1);
  job.save_even(2);
  EXPECT_EQ(job.latest(), 2);
}

}  // namespace checkpoints_test
}  // namespace weft::sharded::testing
