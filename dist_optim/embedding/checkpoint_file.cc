#include <weft/dist_optim/embedding/checkpoint_file.h>

#include <weft/parallel/weights/checked_file.h>
#include <weft/rpc/core/error.h>

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

namespace weft::dist_optim {
namespace {

constexpr char magic[8] = {'w', 'e', 'f', 't', 'r', 'o', 'w', 's'};
constexpr RowStore::Row block_rows = 1 << 16;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw rpc::Error(rpc::ErrorKind::failed_precondition, path.string() + ": " + what);
}
struct Header {
  char word[8];
  std::uint64_t version, dimension, record, optimizer, erased;
};

// Returns the number of rows that were written.
std::uint64_t write_rows(weights::CheckedFile& file, const RowStore& rows, RowStore::Epoch since) {
  std::uint64_t count = 0;
  const auto erased = since == 0 ? std::vector<std::int64_t>{} : rows.erased(since);
  const auto all = [](std::int64_t) { return true; };
  const auto kind = static_cast<std::uint64_t>(rows.optimizer().kind);
  Header header{{}, 1, rows.dimension(), rows.record_size(), kind, erased.size()};
  std::memcpy(header.word, magic, sizeof magic);
  file.write(&header, sizeof header);
  file.write(erased);
  // Blocks end with an empty one, because the number of rows is known only then.
  for (RowStore::Row from = 0; from < rows.end();
       from += std::min<RowStore::Row>(block_rows, rows.end() - from)) {
    const RowBlock block = rows.take_out(from, block_rows, since, all);
    if (block.ids.empty()) continue;
    const std::uint64_t size = block.ids.size();
    count += size;
    file.write(&size, sizeof size);
    file.write(block.ids);
    file.write(block.ages);
    file.write(block.records);
  }
  const std::uint64_t none = 0;
  file.write(&none, sizeof none);
  const std::uint32_t crc = file.crc();
  file.write(&crc, sizeof crc);
  return count;
}

}  // namespace

std::string CheckpointFile::name() const {
  char text[120];
  std::snprintf(text, sizeof text, "embedding-%llu-%llu-%u-of-%u.rows",
                static_cast<unsigned long long>(sequence), static_cast<unsigned long long>(previous), index,
                owners);
  return text;
}

std::optional<CheckpointFile> CheckpointFile::parse(const std::string& name) {
  unsigned long long sequence = 0, previous = 0;
  CheckpointFile file;
  if (std::sscanf(name.c_str(), "embedding-%llu-%llu-%u-of-%u.rows", &sequence, &previous, &file.index,
                  &file.owners) != 4)
    return std::nullopt;
  file.sequence = sequence;
  file.previous = previous;
  if (file.name() != name || file.index >= file.owners || file.previous >= file.sequence) return std::nullopt;
  return file;
}

std::vector<CheckpointFile> checkpoint_files(const std::filesystem::path& directory) {
  std::vector<CheckpointFile> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    if (const auto file = CheckpointFile::parse(entry->path().filename().string())) files.push_back(*file);
  if (error && error != std::errc::no_such_file_or_directory) fail(directory, error.message());
  std::sort(files.begin(), files.end());
  return files;
}

std::uint64_t write_checkpoint(const std::filesystem::path& directory, const CheckpointFile& file,
                               const RowStore& rows, RowStore::Epoch since) {
  const std::filesystem::path path = directory / file.name();
  if (std::filesystem::exists(path))
    throw rpc::Error(rpc::ErrorKind::already_exists, path.string() + ": the checkpoint file exists already");
  std::uint64_t count = 0;
  weights::write_whole(path, [&](weights::CheckedFile& to) { count = write_rows(to, rows, since); });
  return count;
}

void read_checkpoint(const std::filesystem::path& directory, const CheckpointFile& name, RowStore& rows) {
  weights::CheckedFile file(directory / name.name(), O_RDONLY);
  const std::uint64_t size = file.size();
  Header header;
  file.read(&header, sizeof header);
  if (std::memcmp(header.word, magic, sizeof magic) != 0 || header.version != 1)
    file.fail("is not a checkpoint of an embedding that this version can read");
  if (header.dimension != rows.dimension() || header.record != rows.record_size() ||
      header.optimizer != static_cast<std::uint64_t>(rows.optimizer().kind))
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     file.path().string() + ": the rows have dimension " + std::to_string(header.dimension) +
                         " and optimizer kind " + std::to_string(header.optimizer) + ", expected " +
                         std::to_string(rows.dimension()) + " and " +
                         std::to_string(static_cast<int>(rows.optimizer().kind)));
  const auto check = [&](std::uint64_t count, std::uint64_t bytes) {
    if (count > size / bytes)
      file.fail("is damaged: it states " + std::to_string(count) + " entries, more than its " +
                std::to_string(size) + " bytes can hold");
  };
  check(header.erased, sizeof(std::int64_t));
  std::vector<std::int64_t> erased;
  file.read(erased, header.erased);
  for (const std::int64_t id : erased) rows.erase(id);
  for (RowBlock block;;) {
    std::uint64_t count = 0;
    file.read(&count, sizeof count);
    if (count == 0) break;
    check(count, sizeof(std::int64_t) + sizeof(std::uint32_t) + rows.record_size() * sizeof(float));
    file.read(block.ids, count);
    file.read(block.ages, count);
    file.read(block.records, count * rows.record_size());
    rows.put(block);
  }
  const std::uint32_t want = file.crc();
  std::uint32_t found = 0;
  file.read(&found, sizeof found);
  if (found != want)
    file.fail("is damaged: the checksum of its contents is " + std::to_string(want) + ", expected " +
              std::to_string(found));
}

std::optional<CheckpointChains> newest_checkpoint(std::vector<CheckpointFile> files) {
  std::sort(files.begin(), files.end());
  std::map<std::pair<std::uint32_t, std::uint64_t>, CheckpointFile> by_place;  // index and sequence
  std::vector<CheckpointFile> newest_first;
  for (const CheckpointFile& file : files)
    if (by_place.emplace(std::pair(file.index, file.sequence), file).second)
      newest_first.insert(newest_first.begin(), file);
  std::optional<std::pair<std::uint64_t, std::uint32_t>> tried;
  for (const CheckpointFile& top : newest_first) {
    if (tried == std::pair(top.sequence, top.owners)) continue;
    tried = std::pair(top.sequence, top.owners);
    CheckpointChains found{top.sequence, {}};
    for (std::uint32_t index = 0; index < top.owners; ++index) {
      std::vector<CheckpointFile> chain;
      std::uint64_t sequence = top.sequence;
      while (sequence != 0) {
        const auto file = by_place.find({index, sequence});
        if (file == by_place.end() || (chain.empty() && file->second.owners != top.owners)) break;
        chain.insert(chain.begin(), file->second);
        sequence = file->second.previous;
      }
      if (sequence != 0) break;
      found.chains.push_back(std::move(chain));
    }
    if (found.chains.size() == top.owners) return found;
  }
  return std::nullopt;
}

}  // namespace weft::dist_optim
