// StoreLog: the file of a FileStore: a log of changes under an advisory lock.
//
//   "weftkv1\n", then records: u32 size of the payload · u32 crc32c of it · payload = u8 (1 set, 2 remove) ·
//   u32 size of the key · key · value; little-endian.
// A record that is cut short at the end of the file is of a writer that died: it counts for nothing, and goes
// with the next append. Thread-safety: none; the lock is the file's and shuts out other processes and other
// StoreLogs.
#pragma once

#include <weft/rpc/core/error.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace weft::rpc {

class WEFT_EXPORT StoreLog {
 public:
  struct Record {
    std::string key;
    std::optional<std::string> value;  // none: removed
  };

  explicit StoreLog(std::string path);  // throws unavailable
  ~StoreLog();
  StoreLog(const StoreLog&) = delete;
  StoreLog& operator=(const StoreLog&) = delete;

  // Tries once; false where another holds the lock.
  bool try_lock(bool exclusive);
  void unlock();

  // Under the lock: the records that are new since the last call.
  void read(const std::function<void(Record)>& apply);
  // Under the exclusive lock, after read().
  void append(const Record& record);

  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void damaged(const std::string& how) const;
  void write_at_end(const std::string& bytes);

  std::string path_;
  int file_;
  std::uint64_t position_ = 0;  // of what has been read
};

}  // namespace weft::rpc
