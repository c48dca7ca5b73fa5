#include <weft/rpc/call/call_options.h>

namespace weft::rpc {

void CallOptions::merge(const CallOptions& later) {
  if (later.timeout) timeout = later.timeout;
  if (later.retry) retry = later.retry;
  if (later.idempotent) idempotent = later.idempotent;
  if (later.wait_for_ready) wait_for_ready = later.wait_for_ready;
  if (later.connect_within) connect_within = later.connect_within;
  if (later.fail_fast) fail_fast = later.fail_fast;
}

}  // namespace weft::rpc
