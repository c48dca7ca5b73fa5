#include <weft/rpc/observe/loop_watch.h>

#include <time.h>

#include <condition_variable>

namespace weft::observe {
namespace {

std::chrono::nanoseconds thread_time() {
  timespec time{};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return std::chrono::nanoseconds{0};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

// The last question to one loop.
struct LoopWatch::Question {
  std::mutex mutex;  // guards the following members
  std::condition_variable changed;
  bool open = false;  // posted, and not answered yet
  rpc::Clock::time_point asked;
  std::chrono::nanoseconds delay{0}, cpu{0};

  void answer() {
    std::lock_guard lock(mutex);
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
    std::lock_guard lock(mutex_);
    while (questions_.size() < core->loops().size()) questions_.push_back(std::make_shared<Question>());
    questions = questions_;
  }
  for (std::size_t i = 0; i < questions.size(); ++i) {
    {
      std::lock_guard lock(questions[i]->mutex);
      if (std::exchange(questions[i]->open, true)) continue;
      questions[i]->asked = rpc::Clock::now();
    }
    core->loops()[i]->post([question = questions[i]] { question->answer(); });
  }
  const auto end = rpc::later(rpc::Clock::now(), timeout);
  std::vector<Loop> loops;
  for (const auto& question : questions) {
    std::unique_lock lock(question->mutex);
    Loop loop;
    loop.answered = question->changed.wait_until(lock, end, [&] { return !question->open; });
    loop.delay = loop.answered ? question->delay : rpc::Clock::now() - question->asked;
    loop.cpu = question->cpu;
    loops.push_back(loop);
  }
  return loops;
}

}  // namespace weft::observe
