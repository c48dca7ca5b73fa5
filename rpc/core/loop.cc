#include <weft/rpc/core/loop.h>

namespace weft::rpc {
namespace {

thread_local int owned = 0;

}  // namespace

OwnedThread::OwnedThread() { ++owned; }
OwnedThread::~OwnedThread() { --owned; }
bool OwnedThread::here() { return owned != 0; }

}  // namespace weft::rpc
