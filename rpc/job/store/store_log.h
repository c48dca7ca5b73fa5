// StoreLog: the file of a FileStore: a log of changes under an advisory lock.
//
//   "weftkv1\n", then records: u32 size of the payload · u32 crc32c of it · payload = u8 kind · u64 lease ·
//   u32 size of the key · key · value; little-endian.
//
// An incomplete record at the end of the file is from a writer that died: it is ignored, and the next append
// overwrites it. The value of a grant is u64 ttl in ns · u64 beat. The beat is not part of the checksum. Each
// renewal of the lease overwrites the beat, so renewals do not make the file longer. Thread-safety: none; the
// lock belongs to the file and excludes other processes and other StoreLogs.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/job/store/store.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace weft::rpc {

class WEFT_EXPORT StoreLog {
 public:
  // set, remove: a key changes. grant, end: a lease begins, and ends.
  enum class Kind : std::uint8_t { set = 1, remove = 2, grant = 3, end = 4 };
  // One change. Fields that its kind does not have are at their defaults.
  struct Record {
    Kind kind = Kind::set;
    std::string key, value;           // value: only of Kind::set
    LeaseId lease = no_lease;         // the lease of the key, or the lease that begins or ends
    std::chrono::nanoseconds ttl{0};  // only of a grant
    std::uint64_t beat_at = 0;        // only of a grant: the position of its beat
  };

  explicit StoreLog(std::string path);  // throws unavailable
  ~StoreLog();
  StoreLog(const StoreLog&) = delete;
  StoreLog& operator=(const StoreLog&) = delete;

  // Tries once to lock the file. false: another process holds the lock.
  bool try_lock(bool exclusive);

  void unlock();  // no effect without the lock

  // Passes each record that was appended since the last read() to `apply`. Call it with the lock held.
  void read(const std::function<void(Record)>& apply);
  // Whether there may be new records. Does not lock the file, so that readers do not delay writers.
  bool grown() const;
  // Appends a record. Call it with the exclusive lock held, after read(). Returns the record as read() would.
  Record append(Record record);
  // Reads and writes the beat at that position. Call beat() with the lock held, set_beat() with the exclusive
  // lock held.
  std::uint64_t beat(std::uint64_t at) const;
  void set_beat(std::uint64_t at, std::uint64_t beat);

  const std::string& path() const { return path_; }  // as given to the constructor

 private:
  [[noreturn]] void damaged(const std::string& how) const;
  [[noreturn]] void failed(const std::string& what) const;
  void write_at(std::uint64_t at, const std::string& bytes);

  std::string path_;
  int file_;
  std::uint64_t position_ = 0;  // the position of the next record to read
};

}  // namespace weft::rpc
