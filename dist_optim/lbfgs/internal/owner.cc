#include <weft/dist_optim/lbfgs/internal/owner.h>
#include <weft/rpc/core/error.h>

namespace weft::dist_optim {

void LbfgsOwner::attach(const Holder& holder, std::size_t history_size) {
  rpc::MutexLock lock(mutex_);
  LbfgsVectors vectors(owned_, history_size);
  owned_.claim(holder.name.empty() ? holder.trainer : holder.name);
  vectors_.emplace(std::move(vectors));
  holder_ = holder;
}

void LbfgsOwner::detach(const Holder& holder) {
  rpc::MutexLock lock(mutex_);
  if (vectors_ && holder_ == holder) end();
}

void LbfgsOwner::trainer_gone(const std::string& trainer) {
  rpc::MutexLock lock(mutex_);
  if (!vectors_ || holder_.trainer != trainer) return;
  try {
    end();
  } catch (...) {  // out of memory; there is no caller to notify
  }
}

void LbfgsOwner::check_holder(const Holder& holder) const {
  if (!vectors_ || !(holder_ == holder))
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "trainer " + (holder.name.empty() ? holder.trainer : holder.name) +
                         " does not step these parameters by L-BFGS");
}

void LbfgsOwner::end() {
  struct Free {
    LbfgsOwner& self;
    ~Free() {  // not analysed: in end(), with the mutex locked
      self.vectors_.reset();
      self.owned_.end_claim();
    }
  } free{*this};
  vectors_->restore();
}

}  // namespace weft::dist_optim
