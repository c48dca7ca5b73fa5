// A save has two rounds. In each, rank 0 gathers the reports of all ranks and scatters its decisions. In the
// first round, rank 0 plans which rank writes which tensors, and creates a folder. Then the ranks write. In
// the second round, rank 0 completes the folder.
#include <weft/parallel/sharded/checkpoint/checkpoints.h>

#include <weft/parallel/sharded/checkpoint/slice_file.h>
#include <weft/parallel/sharded/checkpoint/writer_plan.h>
#include <weft/parallel/training/internal/agreement.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <future>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

namespace weft::sharded {
namespace {

using collectives::Group;
using collectives::GroupOptions;
using training::RankFailure;

Group group_of_checkpoints(const Group& group, std::chrono::nanoseconds timeout) {
  GroupOptions options = group.options();
  options.name = group.name() + "/checkpoints";
  options.shared_memory = false;  // small values only
  options.timeout = timeout;
  return group.split(0, group.rank(), options).get().value();
}

// Options that are not valid are refused before the ranks exchange anything.
CheckpointOptions checked_options(CheckpointOptions options) {
  if (options.keep < 1)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "Checkpoints: CheckpointOptions::keep is " + std::to_string(options.keep) + ", expected at least 1");
  return options;
}

}  // namespace

struct SaveReport {
  std::int64_t step = 0;
  RankFailure failure = {};
  std::vector<SliceRange> slices = {};  // in the first round
  std::uint32_t crc = 0;                // of the file, in the second round
};
WEFT_CODEC(SaveReport, step, failure, slices, crc)

struct SaveVerdict {
  RankFailure failure = {};
  std::string folder = {};               // name of the unfinished one
  std::vector<std::string> writes = {};  // names of tensors
};
WEFT_CODEC(SaveVerdict, failure, folder, writes)

struct LatestStep {
  RankFailure failure = {};
  std::optional<std::int64_t> step = {};
};
WEFT_CODEC(LatestStep, failure, step)

Checkpoints::Checkpoints(const Group& group, std::filesystem::path folder, CheckpointOptions options)
    : options_(checked_options(options)),
      path_(std::move(folder)),
      folder_(path_),
      group_(group_of_checkpoints(group, options_.timeout)) {}

Checkpoints::~Checkpoints() {
  if (!saving_.valid()) return;
  // Does not call saving_.get(), so that an agent's thread may wait here too: the writer completes the
  // future.
  const auto saved = std::make_shared<std::promise<void>>();
  std::move(saving_).then([saved](rpc::Result<void>&&) { saved->set_value(); });
  saved->get_future().wait();
}

void Checkpoints::wait() {
  if (saving_.valid()) saving_.get();
}

rpc::Future<void> Checkpoints::save(std::int64_t step, const SlicedState& state) {
  wait();
  // An error of this rank alone reaches all ranks by its report.
  SaveReport report{.step = step};
  report.failure = RankFailure::of("", [&] {
    for (const auto& [name, text] : state.notes)
      if (name.starts_with("weft."))
        throw rpc::Error(
            rpc::ErrorKind::invalid_argument,
            "the note '" + name +
                "' has a name that begins with 'weft.', which is reserved: expected another name");
    host_.copy(state.tensors);
    for (const auto& [name, tensor] : host_.tensors()) report.slices.push_back(range_of(name, tensor));
  });
  rpc::Promise<void> finished(writer_.exceptions()), saved(writer_.exceptions());
  saving_ = finished.future();
  auto future = saved.future();
  write(std::move(report), state.notes)
      .start(writer_)
      .then([finished = std::move(finished), saved = std::move(saved)](rpc::Result<void>&& result) mutable {
        finished.complete(rpc::Result<void>{});  // before a continuation may call save() again
        saved.complete(std::move(result));
      });
  return future;
}

rpc::Task<void> Checkpoints::write(SaveReport report, std::map<std::string, std::string> notes) {
  const bool decides = group_.rank() == 0;
  const std::string where = "checkpoint of step " + std::to_string(report.step) + ": ";
  const std::string here = where + "rank " + std::to_string(group_.rank()) + ": ";
  if (report.failure.kind != 0) report.failure.text = here + report.failure.text;

  auto ready = group_.gather_object(report, 0);
  std::vector<SaveReport> reports = co_await std::move(ready);
  std::vector<SaveVerdict> verdicts;
  if (decides) {
    const RankFailure failure = RankFailure::of(where, [&] { verdicts = begin(reports); });
    if (failure.kind != 0) verdicts.assign(reports.size(), {.failure = failure});
  }
  auto planned = group_.scatter_object(verdicts, 0);
  const SaveVerdict verdict = co_await std::move(planned);
  verdict.failure.raise();

  const std::filesystem::path folder = path_ / verdict.folder;
  report.slices.clear();
  report.failure = RankFailure::of(here, [&] {
    std::error_code missing;
    if (!std::filesystem::is_directory(folder, missing))
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       folder.string() +
                           ": rank 0 has made this folder, and it does not exist here; the "
                           "folder must be on a file system that all ranks share");
    report.crc = write_slices(CheckpointFolder::file_of(folder, static_cast<std::size_t>(group_.rank()),
                                                        static_cast<std::size_t>(group_.size())),
                              host_.tensors(), verdict.writes);
  });
  auto written = group_.gather_object(report, 0);
  reports = co_await std::move(written);
  RankFailure failure;
  if (decides) {
    failure = RankFailure::of(where, [&] { complete(folder, reports, std::move(notes)); });
    if (failure.kind != 0) folder_.abandon(folder);
  }
  auto completed = group_.broadcast_object(failure, 0);
  failure = co_await std::move(completed);
  failure.raise();
}

std::vector<SaveVerdict> Checkpoints::begin(const std::vector<SaveReport>& reports) {
  std::vector<std::vector<SliceRange>> slices;
  for (const SaveReport& report : reports) {
    report.failure.raise();
    if (report.step != reports.front().step)
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "rank " + std::to_string(slices.size()) + " saves step " +
                           std::to_string(report.step) + ", expected step " +
                           std::to_string(reports.front().step) + " as on rank 0");
    slices.push_back(report.slices);
  }
  std::vector<SaveVerdict> verdicts;
  for (auto& names : plan_writers(slices)) verdicts.push_back({.writes = std::move(names)});
  const std::string folder = folder_.begin(reports.front().step).filename().string();
  for (SaveVerdict& verdict : verdicts) verdict.folder = folder;
  return verdicts;
}

void Checkpoints::complete(const std::filesystem::path& folder, const std::vector<SaveReport>& reports,
                           std::map<std::string, std::string> notes) {
  Manifest manifest{reports.front().step, {}, std::move(notes)};
  for (const SaveReport& report : reports) {
    report.failure.raise();
    manifest.files.push_back(report.crc);
  }
  folder_.complete(folder, manifest);
  // The checkpoint is complete. If an old one cannot be removed now, the next save tries again.
  const RankFailure failure =
      RankFailure::of("", [&] { folder_.keep(static_cast<std::size_t>(options_.keep)); });
  if (failure.kind != 0)
    group_.agent()->log().write(rpc::LogLevel::warning,
                                "an old checkpoint cannot be removed: " + failure.text);
}

std::optional<std::int64_t> Checkpoints::latest() {
  wait();
  LatestStep latest;
  if (group_.rank() == 0)
    latest.failure = RankFailure::of("latest checkpoint: ", [&] {
      if (const auto steps = folder_.steps(); !steps.empty()) latest.step = steps.back();
    });
  latest = group_.broadcast_object(latest, 0).get();
  latest.failure.raise();
  return latest.step;
}

void Checkpoints::remove_after(std::int64_t step) {
  wait();
  RankFailure failure;
  if (group_.rank() == 0)
    failure = RankFailure::of("checkpoints after step " + std::to_string(step) + ": ",
                              [&] { folder_.remove_after(step); });
  group_.broadcast_object(failure, 0).get().raise();
}

std::vector<std::string> Checkpoints::names(std::int64_t step) const {
  const Manifest manifest = folder_.manifest(step);
  std::set<std::string> names;
  for (std::size_t rank = 0; rank < manifest.files.size(); ++rank) {
    const SliceFileReader file(CheckpointFolder::file_of(folder_.of_step(step), rank, manifest.files.size()),
                               manifest.files[rank]);
    for (const auto& [name, slice] : file.slices()) names.insert(name);
  }
  return {names.begin(), names.end()};
}

std::map<std::string, std::string> Checkpoints::load(std::int64_t step, SlicedState& wanted) const {
  Manifest manifest = folder_.manifest(step);
  const auto checkpoint = folder_.of_step(step);
  const std::size_t files = manifest.files.size();
  std::vector<SliceTarget> targets;
  for (const auto& [name, tensor] : wanted.tensors) targets.emplace_back(name, tensor);
  const auto first =
      static_cast<std::size_t>(group_.rank()) * files / static_cast<std::size_t>(group_.size());
  for (std::size_t i = 0; i < files; ++i) {
    std::erase_if(targets, [](const SliceTarget& target) { return target.filled(); });
    if (targets.empty()) break;
    const std::size_t rank = (first + i) % files;
    SliceFileReader file(CheckpointFolder::file_of(checkpoint, rank, files), manifest.files[rank]);
    for (SliceTarget& target : targets) target.fill_from(file);
  }
  for (const SliceTarget& target : targets) target.expect_filled(checkpoint);
  return std::move(manifest.notes);
}

}  // namespace weft::sharded
