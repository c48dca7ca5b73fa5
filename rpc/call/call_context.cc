#include <weft/rpc/call/call_context.h>

#include <utility>

namespace weft::rpc {

CancelSource::CancelJobId CancelSource::on_cancel(Callback job) {
  MutexLock lock(mutex_);
  if (cancelled_) {
    lock.unlock();
    job();
    return 0;
  }
  const CancelJobId id = ++last_;
  jobs_.emplace(id, std::move(job));
  lock.unlock();
  if (id == 1) first_cancel_job();
  return id;
}

void CancelSource::forget_cancel(CancelJobId id) {
  std::map<CancelJobId, Callback>::node_type job;  // destroyed after the lock
  MutexLock lock(mutex_);
  job = jobs_.extract(id);
}

bool CancelSource::was_cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

void CancelSource::run_cancel_jobs() {
  std::map<CancelJobId, Callback> jobs;
  {
    MutexLock lock(mutex_);
    if (std::exchange(cancelled_, true)) return;
    jobs = std::move(jobs_);
  }
  for (auto& [id, job] : jobs) {
    try {
      job();
    } catch (...) {
      cancel_job_threw(std::current_exception());
    }
  }
}

void CancelSource::cancel_job_threw(const std::exception_ptr& exception) noexcept {
  ExceptionSink().take("a callback of on_cancel()", exception);
}

}  // namespace weft::rpc
