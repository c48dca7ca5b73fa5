#include <weft/dist_optim/lbfgs/host.h>
#include <weft/rpc/core/error.h>

namespace weft::dist_optim {

void LbfgsHost::attach(const Holder& holder, std::size_t history_size) {
  rpc::MutexLock lock(mutex_);
  LbfgsVectors vectors(host_, history_size);
  host_.claim(holder.name.empty() ? holder.trainer : holder.name);
  vectors_.emplace(std::move(vectors));
  holder_ = holder;
}

void LbfgsHost::detach(const Holder& holder) {
  rpc::MutexLock lock(mutex_);
  if (vectors_ && holder_ == holder) end();
}

void LbfgsHost::trainer_gone(const std::string& trainer) {
  rpc::MutexLock lock(mutex_);
  if (!vectors_ || holder_.trainer != trainer) return;
  try {
    end();
  } catch (...) {  // out of memory; there is no caller to notify
  }
}

void LbfgsHost::check_holder(const Holder& holder) const {
  if (!vectors_ || !(holder_ == holder))
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "trainer " + (holder.name.empty() ? holder.trainer : holder.name) +
                         " does not step these parameters by L-BFGS");
}

void LbfgsHost::end() {
  struct Free {
    LbfgsHost& self;
    ~Free() {  // not analysed: in end(), with the mutex locked
      self.vectors_.reset();
      self.host_.end_claim();
    }
  } free{*this};
  vectors_->restore();
}

}  // namespace weft::dist_optim
