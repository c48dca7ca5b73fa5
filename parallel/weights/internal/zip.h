// Zip files whose records are stored without compression, as torch.save() writes them.
//
// LibTorch's PyTorchStreamReader is not used: it is built without checks of checksums, and does not tell
// where compressed records are. Records are the files of the archive. Pure functions.
#pragma once

#include <weft/parallel/weights/internal/mapped_source.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::weights {

struct ZipRecord {
  std::uint64_t begin = 0, size = 0;  // of its bytes in the file
  std::uint32_t crc = 0;
};

// The records by name. Checks that they are in the file and do not overlap. unsupported: a record is
// compressed or encrypted. failed_precondition: the file is damaged. Both name the file and the byte.
std::map<std::string, ZipRecord> read_zip(const MappedFile& file);

// A zip file whose records have known sizes, and are filled in afterwards.
class ZipLayout {
 public:
  // Returns where the record's bytes begin: at a multiple of 64.
  std::uint64_t add(const std::string& name, std::uint64_t size);
  std::uint64_t bytes() const;  // of the file
  // Writes all bytes of the file that are not of records, with the records' checksums.
  void complete(std::byte* file) const;

 private:
  struct Record {
    std::string name;
    std::uint64_t header, begin, size;
  };
  std::string directory(const std::vector<std::uint32_t>& crcs) const;

  std::vector<Record> records_;
  std::uint64_t end_ = 0;
};

}  // namespace weft::weights
