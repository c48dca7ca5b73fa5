#include <weft/rpc/observe/loop_watch.h>

#include <time.h>

namespace weft::observe {
namespace {

std::chrono::nanoseconds thread_time() {
  timespec time{};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return std::chrono::nanoseconds{0};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

// The latest question to one loop.
struct LoopWatch::Question {
  rpc::Mutex mutex;
  rpc::Condition changed;
  bool open WEFT_GUARDED_BY(mutex) = false;  // posted, and not answered yet
  rpc::Clock::time_point asked WEFT_GUARDED_BY(mutex);
  std::chrono::nanoseconds delay WEFT_GUARDED_BY(mutex){0}, cpu WEFT_GUARDED_BY(mutex){0};

  void answer() {
    rpc::MutexLock lock(mutex);
    open = false;
    delay = rpc::Clock::now() - asked;
    cpu = thread_time();
    changed.notify_all();
  }
};

std::vector<LoopWatch::Loop> LoopWatch::ask(std::chrono::nanoseconds timeout) {
  const auto core = core_.lock();
  if (core == nullptr || core->ended()) return {};
  std::vector<std::shared_ptr<Question>> questions;
  {
    rpc::MutexLock lock(mutex_);
    while (questions_.size() < core->loops().size()) questions_.push_back(std::make_shared<Question>());
    questions = questions_;
  }
  for (std::size_t i = 0; i < questions.size(); ++i) {
    {
      rpc::MutexLock lock(questions[i]->mutex);
      if (std::exchange(questions[i]->open, true)) continue;
      questions[i]->asked = rpc::Clock::now();
    }
    core->loops()[i]->post([question = questions[i]] { question->answer(); });
  }
  const auto end = rpc::later(rpc::Clock::now(), timeout);
  std::vector<Loop> loops;
  for (const auto& question : questions) {
    rpc::MutexLock lock(question->mutex);
    Loop loop;
    loop.answered = question->changed.wait_until(
        lock, end, [&]() WEFT_REQUIRES(question->mutex) { return !question->open; });
    loop.delay = loop.answered ? question->delay : rpc::Clock::now() - question->asked;
    loop.cpu = question->cpu;
    loops.push_back(loop);
  }
  return loops;
}

}  // namespace weft::observe
