// DynamicStream: reads a stream whose item type is not known at compile time. It is for tools and gateways.
//
//   DynamicStream stream(reply.result());  // reply: returned by call_by_name()
//   while (auto item = stream.next().get()) use(item->value);
//
// Owns the reading end: the destructor closes the stream. Thread-safety: one thread at a time.
#pragma once

#include <weft/rpc/stream/reader.h>
#include <weft/rpc/stream/stream_table.h>

namespace weft::rpc {

class DynamicStream {
 public:
  using Item = detail::StreamReader::Raw;  // the value is valid as long as the item's message

  // Throws type_mismatch if the value is not a stream, failed_precondition if the stream was already taken.
  explicit DynamicStream(ValueReader value) : reader_(detail::StreamTable::receive(value)) {}
  DynamicStream(DynamicStream&&) noexcept = default;
  DynamicStream& operator=(DynamicStream&&) = delete;
  ~DynamicStream() {
    if (reader_ != nullptr) reader_->close();
  }

  Future<std::optional<Item>> next() { return reader_->next(); }  // as Stream<T>::next()

 private:
  std::shared_ptr<detail::StreamReader> reader_;
};

}  // namespace weft::rpc
