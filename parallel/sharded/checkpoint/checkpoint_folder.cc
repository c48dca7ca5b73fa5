#include <weft/parallel/sharded/checkpoint/checkpoint_folder.h>

#include <weft/dist_optim/checkpoint/tensor_file.h>
#include <weft/rpc/core/error.h>

#include <fcntl.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <random>
#include <string_view>
#include <system_error>

namespace weft::sharded {
namespace {

namespace fs = std::filesystem;
using ManifestJson = nlohmann::json;

constexpr auto manifest_file = "manifest.safetensors", manifest_note = "weft.checkpoint";
constexpr int manifest_format = 1;

[[noreturn]] void fail_at(const fs::path& path, const std::string& what) {
  throw rpc::Error(rpc::ErrorKind::failed_precondition, path.string() + ": " + what);
}

// Runs a function of std::filesystem that reports by an error_code.
template <class F>
auto checked(const fs::path& path, const char* what, F f) {
  std::error_code error;
  auto result = f(error);
  if (error) {
    const bool full = error == std::errc::no_space_on_device;
    throw rpc::Error(full ? rpc::ErrorKind::resource_exhausted : rpc::ErrorKind::failed_precondition,
                     path.string() + ": " + what + ": " + error.message());
  }
  return result;
}

void sync_folder(const fs::path& path) { weights::CheckedFile(path, O_RDONLY | O_DIRECTORY).sync(); }

struct FolderName {
  std::int64_t step;
  bool unfinished;
};

// "step-000000120" or "step-000000120.part-..."
std::optional<FolderName> parse_folder_name(const std::string& name) {
  constexpr std::string_view prefix = "step-", part = ".part-";
  if (!name.starts_with(prefix)) return std::nullopt;
  FolderName found{};
  const char *const begin = name.data() + prefix.size(), *const end = name.data() + name.size();
  const auto number = std::from_chars(begin, end, found.step);
  if (number.ec != std::errc() || number.ptr - begin < 9) return std::nullopt;
  const std::string_view rest(number.ptr, static_cast<std::size_t>(end - number.ptr));
  found.unfinished = rest.starts_with(part);
  if (!rest.empty() && !found.unfinished) return std::nullopt;
  return found;
}

struct Found {
  fs::path path;
  std::int64_t step;
  bool complete;
};

std::vector<Found> folders_in(const fs::path& path) {
  std::vector<Found> found;
  std::error_code missing;
  if (!fs::exists(path, missing)) return found;
  for (const fs::directory_entry& entry : checked(path, "cannot be listed", [&](std::error_code& error) {
         return fs::directory_iterator(path, error);
       }))
    if (const auto name = parse_folder_name(entry.path().filename().string()))
      found.push_back(
          {entry.path(), name->step, !name->unfinished && fs::exists(entry.path() / manifest_file, missing)});
  return found;
}

}  // namespace

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> steps;
  for (const Found& found : folders_in(path_))
    if (found.complete) steps.push_back(found.step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

fs::path CheckpointFolder::of_step(std::int64_t step) const {
  char name[32];
  std::snprintf(name, sizeof name, "step-%09lld", static_cast<long long>(step));
  return path_ / name;
}

fs::path CheckpointFolder::file_of(const fs::path& folder, std::size_t rank, std::size_t ranks) {
  return folder / ("rank-" + std::to_string(rank) + "-of-" + std::to_string(ranks) + ".safetensors");
}

Manifest CheckpointFolder::manifest(std::int64_t step) const {
  const fs::path path = of_step(step) / manifest_file;
  std::error_code missing;
  if (!fs::exists(path, missing)) {
    std::string complete;
    for (const std::int64_t other : steps()) complete += " " + std::to_string(other);
    fail_at(of_step(step), "no complete checkpoint of this step, the folder has those of the steps:" +
                               (complete.empty() ? std::string(" none") : complete));
  }
  dist_optim::TensorFile file = dist_optim::read_tensor_file(path);
  const auto note = file.notes.find(manifest_note);
  if (!file.proven || note == file.notes.end()) fail_at(path, "is not a manifest of a checkpoint");
  Manifest manifest;
  try {
    const ManifestJson about = ManifestJson::parse(note->second);
    if (const int format = about.at("format").get<int>(); format > manifest_format)
      fail_at(path, "has the format " + std::to_string(format) + ", expected at most " +
                        std::to_string(manifest_format) + ": a later version of weft wrote it");
    manifest.step = about.at("step").get<std::int64_t>();
    manifest.files = about.at("files").get<std::vector<std::uint32_t>>();
  } catch (const ManifestJson::exception& error) {
    fail_at(path, std::string("is damaged: ") + error.what());
  }
  if (manifest.step != step)
    fail_at(path,
            "is that of step " + std::to_string(manifest.step) + ", expected step " + std::to_string(step));
  file.notes.erase(note);
  manifest.notes = std::move(file.notes);
  return manifest;
}

void CheckpointFolder::lock() {
  if (lock_) return;
  checked(path_, "cannot be made",
          [&](std::error_code& error) { return fs::create_directories(path_, error); });
  lock_.emplace(path_ / "writer.lock", O_WRONLY | O_CREAT);
  if (lock_->claim()) return;
  lock_.reset();
  fail_at(path_, "another job writes checkpoints into this folder; give each job a folder");
}

fs::path CheckpointFolder::unfinished(std::int64_t step) const {
  std::random_device random;
  char suffix[32];
  std::snprintf(suffix, sizeof suffix, ".part-%08x%08x", random(), random());
  return of_step(step).string() + suffix;
}

fs::path CheckpointFolder::begin(std::int64_t step) {
  if (step < 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "step " + std::to_string(step) + " is negative, expected at least 0");
  lock();
  for (const Found& found : folders_in(path_)) {
    if (found.complete && found.step >= step)
      fail_at(found.path, "is complete, and step " + std::to_string(step) +
                              " is not after it; to go back to an earlier step, call remove_after() first");
    if (!found.complete)
      checked(found.path, "cannot be removed",
              [&](std::error_code& error) { return fs::remove_all(found.path, error); });
  }
  fs::path folder = unfinished(step);
  checked(folder, "cannot be made",
          [&](std::error_code& error) { return fs::create_directory(folder, error); });
  return folder;
}

void CheckpointFolder::complete(const fs::path& unfinished, const Manifest& manifest) {
  dist_optim::TensorFile file;
  file.notes = manifest.notes;
  file.notes[manifest_note] =
      ManifestJson{{"format", manifest_format}, {"step", manifest.step}, {"files", manifest.files}}.dump();
  dist_optim::write_tensor_file(unfinished / manifest_file, file);
  checked(unfinished, "cannot be renamed", [&](std::error_code& error) {
    fs::rename(unfinished, of_step(manifest.step), error);
    return 0;
  });
  try {
    sync_folder(path_);
  } catch (...) {  // a save that fails leaves no checkpoint
    std::error_code still_complete;
    fs::rename(of_step(manifest.step), unfinished, still_complete);
    throw;
  }
}

void CheckpointFolder::abandon(const fs::path& unfinished) const noexcept {
  std::error_code left_over;  // for the next begin()
  fs::remove_all(unfinished, left_over);
}

void CheckpointFolder::keep(std::size_t newest) const {
  const auto complete = steps();
  for (std::size_t i = 0; i + newest < complete.size(); ++i) remove(complete[i]);
}

void CheckpointFolder::remove_after(std::int64_t step) {
  lock();
  auto complete = steps();
  std::reverse(complete.begin(), complete.end());  // the newest first: a failure leaves no gap
  for (const std::int64_t later : complete)
    if (later > step) remove(later);
}

void CheckpointFolder::remove(std::int64_t step) const {
  const fs::path old = unfinished(step);
  checked(of_step(step), "cannot be removed", [&](std::error_code& error) {
    fs::rename(of_step(step), old, error);
    return 0;
  });
  sync_folder(path_);  // before its files are removed
  abandon(old);
}

}  // namespace weft::sharded
