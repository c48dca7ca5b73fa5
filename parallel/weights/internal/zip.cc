// The format is in PKWARE's APPNOTE. Before its bytes, a record has a local header; at the end of the file,
// the directory repeats the headers and says where they are. Numbers that do not fit into 32 bits are in an
// extra field (zip64), and the 32-bit number is then 0xffffffff.
#include <weft/parallel/weights/internal/zip.h>

#include <weft/parallel/weights/internal/crc32.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace weft::weights {
namespace {

constexpr std::uint32_t local_magic = 0x04034b50, entry_magic = 0x02014b50, end_magic = 0x06054b50,
                        end64_magic = 0x06064b50, locator_magic = 0x07064b50;
constexpr std::uint64_t local_size = 30, entry_size = 46, end_size = 22, end64_size = 56, locator_size = 20;
constexpr std::uint32_t in_extra = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t alignment = 64;

template <class T>
T number_at(std::string_view bytes, std::uint64_t at) {
  T number;
  std::memcpy(&number, bytes.data() + at, sizeof number);  // the caller has checked the size
  return number;
}

[[noreturn]] void refuse_zip(const MappedFile& file, std::uint64_t at, const std::string& what) {
  file.fail("is damaged: at byte " + std::to_string(at) + ", " + what);
}

struct Directory {
  std::uint64_t begin, size, records;
};

Directory find_directory(const MappedFile& file) {
  const std::string_view all = file.text(0, file.size());
  if (all.size() < end_size) refuse_zip(file, 0, "the file is too short for a zip file");
  // The end record may be followed by a comment of up to 65,535 bytes.
  std::uint64_t at = all.size() - end_size;
  const std::uint64_t last = at > 0xffff ? at - 0xffff : 0;
  while (number_at<std::uint32_t>(all, at) != end_magic) {
    if (at == last) refuse_zip(file, at, "a zip file has no end record: the file is truncated");
    --at;
  }
  Directory found{number_at<std::uint32_t>(all, at + 16), number_at<std::uint32_t>(all, at + 12),
                  number_at<std::uint16_t>(all, at + 10)};
  std::uint64_t end = at;
  if (at >= locator_size + end64_size && number_at<std::uint32_t>(all, at - locator_size) == locator_magic) {
    end = number_at<std::uint64_t>(all, at - locator_size + 8);
    if (end > at - locator_size - end64_size || number_at<std::uint32_t>(all, end) != end64_magic)
      refuse_zip(file, at, "the locator points to no end record of zip64");
    found = {number_at<std::uint64_t>(all, end + 48), number_at<std::uint64_t>(all, end + 40),
             number_at<std::uint64_t>(all, end + 32)};
  }
  if (found.begin > end || found.size > end - found.begin)
    refuse_zip(file, end,
               "the directory of " + std::to_string(found.size) + " bytes at byte " +
                   std::to_string(found.begin) + " is outside of the file");
  if (found.records > found.size / entry_size)
    refuse_zip(file, end,
               "the directory of " + std::to_string(found.size) + " bytes states " +
                   std::to_string(found.records) + " records");
  return found;
}

// Replaces the numbers that are in_extra by those of the extra field.
void read_zip64(const MappedFile& file, std::uint64_t at, std::string_view extra,
                std::initializer_list<std::uint64_t*> numbers) {
  while (extra.size() >= 4) {
    const std::uint64_t id = number_at<std::uint16_t>(extra, 0), size = number_at<std::uint16_t>(extra, 2);
    if (size > extra.size() - 4) break;
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    for (std::uint64_t* const number : numbers) {
      if (*number != in_extra) continue;
      if (field.size() < sizeof *number) refuse_zip(file, at, "a field of zip64 is too short");
      *number = number_at<std::uint64_t>(field, 0);
      field.remove_prefix(sizeof *number);
    }
    return;
  }
}

template <class T>
void put(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// What local headers and the directory have in common. The sizes are in the field of zip64.
void put_description(std::string& bytes, const std::string& name, std::uint32_t crc, std::uint64_t extra) {
  put<std::uint16_t>(bytes, 45);          // the version of zip64
  put<std::uint16_t>(bytes, 1 << 11);     // names are UTF-8
  put<std::uint16_t>(bytes, 0);           // stored
  put<std::uint32_t>(bytes, 0x00210000);  // 1 January 1980
  put(bytes, crc);
  put(bytes, in_extra);
  put(bytes, in_extra);
  put(bytes, static_cast<std::uint16_t>(name.size()));
  put(bytes, static_cast<std::uint16_t>(extra));
}

void put_field(std::string& bytes, std::uint16_t id, std::initializer_list<std::uint64_t> numbers) {
  put(bytes, id);
  put(bytes, static_cast<std::uint16_t>(numbers.size() * sizeof(std::uint64_t)));
  for (const std::uint64_t number : numbers) put(bytes, number);
}

constexpr std::uint16_t zip64 = 1, padding = 0x4246;  // padding: "FB", as LibTorch writes it
constexpr std::size_t local_extra = 4 + 16;           // both sizes

}  // namespace

std::map<std::string, ZipRecord> read_zip(const MappedFile& file) {
  const Directory directory = find_directory(file);
  std::map<std::string, ZipRecord> records;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  std::uint64_t at = directory.begin;
  const std::uint64_t end = directory.begin + directory.size;
  for (std::uint64_t i = 0; i < directory.records; ++i) {
    if (end - at < entry_size || number_at<std::uint32_t>(file.text(0, end), at) != entry_magic)
      refuse_zip(file, at, "there is no entry of the directory");
    const std::string_view entry = file.text(at, entry_size);
    const std::uint64_t name_size = number_at<std::uint16_t>(entry, 28),
                        extra = number_at<std::uint16_t>(entry, 30),
                        comment = number_at<std::uint16_t>(entry, 32);
    if (name_size + extra + comment > end - at - entry_size)
      refuse_zip(file, at, "an entry of the directory is longer than the directory");
    const std::string name(file.text(at + entry_size, name_size));
    std::uint64_t size = number_at<std::uint32_t>(entry, 24), packed = number_at<std::uint32_t>(entry, 20),
                  header = number_at<std::uint32_t>(entry, 42);
    read_zip64(file, at, file.text(at + entry_size + name_size, extra), {&size, &packed, &header});
    if (number_at<std::uint16_t>(entry, 10) != 0 || (number_at<std::uint16_t>(entry, 8) & 1) != 0 ||
        size != packed)
      file.refuse("the record '" + name + "' is compressed or encrypted, expected a stored one");
    if (header > directory.begin || directory.begin - header < local_size ||
        number_at<std::uint32_t>(file.text(header, local_size), 0) != local_magic)
      refuse_zip(file, at, "the record '" + name + "' has no header at byte " + std::to_string(header));
    const std::string_view local = file.text(header, local_size);
    const std::uint64_t begin =
        header + local_size + number_at<std::uint16_t>(local, 26) + number_at<std::uint16_t>(local, 28);
    if (begin > directory.begin || size > directory.begin - begin)
      refuse_zip(file, at,
                 "the record '" + name + "' of " + std::to_string(size) + " bytes at byte " +
                     std::to_string(begin) + " is outside of the file");
    if (number_at<std::uint16_t>(local, 26) != name_size || file.text(header + local_size, name_size) != name)
      refuse_zip(file, header, "a header has another name than '" + name + "'");
    if (!records.emplace(name, ZipRecord{begin, size, number_at<std::uint32_t>(entry, 16)}).second)
      refuse_zip(file, at, "the record '" + name + "' occurs twice");
    ranges.emplace_back(header, begin + size);
    at += entry_size + name_size + extra + comment;
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first < ranges[i - 1].second) refuse_zip(file, ranges[i].first, "two records overlap");
  return records;
}

std::uint64_t ZipLayout::add(const std::string& name, std::uint64_t size) {
  const std::uint64_t header = end_;
  std::uint64_t begin = header + local_size + name.size() + local_extra + 4;  // 4: of the field for alignment
  begin = (begin + alignment - 1) / alignment * alignment;
  records_.push_back({name, header, begin, size});
  end_ = begin + size;
  return begin;
}

std::uint64_t ZipLayout::bytes() const {
  return end_ + directory(std::vector<std::uint32_t>(records_.size())).size();
}

std::string ZipLayout::directory(const std::vector<std::uint32_t>& crcs) const {
  std::string bytes;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    put(bytes, entry_magic);
    put<std::uint16_t>(bytes, 45);
    put_description(bytes, record.name, crcs[i], 4 + 24);
    bytes.append(10, '\0');  // comment, disk, attributes
    put(bytes, in_extra);
    bytes += record.name;
    put_field(bytes, zip64, {record.size, record.size, record.header});
  }
  const std::uint64_t size = bytes.size();
  put(bytes, end64_magic);
  put<std::uint64_t>(bytes, end64_size - 12);
  put<std::uint32_t>(bytes, 45 | 45 << 16);
  for (const std::uint64_t number :
       {std::uint64_t{0}, std::uint64_t{records_.size()}, std::uint64_t{records_.size()}, size, end_})
    put(bytes, number);
  put(bytes, locator_magic);
  put<std::uint32_t>(bytes, 0);
  put(bytes, end_ + size);
  put<std::uint32_t>(bytes, 1);  // disks
  put(bytes, end_magic);
  put<std::uint32_t>(bytes, 0);
  bytes.append(12, '\xff');  // the numbers are in the record of zip64
  put<std::uint16_t>(bytes, 0);
  return bytes;
}

void ZipLayout::complete(std::byte* file) const {
  std::vector<std::uint32_t> crcs;
  for (const Record& record : records_) crcs.push_back(crc32_of(file + record.begin, record.size));
  const std::string end = directory(crcs);
  std::memcpy(file + end_, end.data(), end.size());
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    std::string header;
    put(header, local_magic);
    put_description(header, record.name, crcs[i],
                    record.begin - record.header - local_size - record.name.size());
    header += record.name;
    put_field(header, zip64, {record.size, record.size});
    put(header, padding);
    put(header, static_cast<std::uint16_t>(record.begin - record.header - header.size() - 2));
    header.resize(record.begin - record.header, '\0');
    std::memcpy(file + record.header, header.data(), header.size());
  }
}

}  // namespace weft::weights
