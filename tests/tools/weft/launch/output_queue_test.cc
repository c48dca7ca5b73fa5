#include "tools/weft/launch/output_queue.h"

#include <signal.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <semaphore>
#include <string>
#include <utility>

namespace weft::tool::launch::output_queue_test {
namespace {

constexpr auto timeout = std::chrono::seconds{30};

class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    stop_reading();
    stop_writing();
  }
  int in() const { return ends_[1]; }
  std::string read(std::size_t bytes) {
    std::string text(bytes, '\0');
    std::size_t got = 0;
    for (ssize_t more; got < bytes && (more = ::read(ends_[0], &text[got], bytes - got)) > 0;)
      got += static_cast<std::size_t>(more);
    text.resize(got);
    return text;
  }
  void stop_reading() { close(ends_[0]); }
  void stop_writing() { close(ends_[1]); }

 private:
  static void close(int& file) {
    if (file >= 0) ::close(std::exchange(file, -1));
  }
  int ends_[2] = {-1, -1};
};

TEST(OutputQueue, WritesInOrderToSeveralFiles) {
  Pipe pipe;
  const int second = ::dup(pipe.in());
  OutputQueue queue([] {});
  for (const int file : {pipe.in(), second, second, pipe.in()})
    queue.add(file, file == second ? "two " : "one ");
  EXPECT_EQ(pipe.read(16), "one two two one ");
  EXPECT_TRUE(queue.empty_within(timeout));
  EXPECT_FALSE(queue.closed());
  ::close(second);
}

TEST(OutputQueue, IsFullUntilItIsRead) {
  Pipe pipe;
  std::counting_semaphore<> changes{0};
  OutputQueue queue([&] { changes.release(); });
  std::string all;
  while (!queue.full()) {
    const std::string line(1000, static_cast<char>('a' + all.size() / 1000 % 26));
    queue.add(pipe.in(), line);
    all += line;
    ASSERT_LE(all.size(), 2 * OutputQueue::most);
  }
  while (changes.try_acquire()) {
  }
  EXPECT_FALSE(queue.empty());
  EXPECT_FALSE(queue.empty_within(std::chrono::milliseconds{1}));
  EXPECT_EQ(pipe.read(all.size()), all);
  EXPECT_TRUE(changes.try_acquire_for(timeout));
  EXPECT_FALSE(queue.full());
  EXPECT_TRUE(queue.empty_within(timeout));
}

TEST(OutputQueue, IsClosedWithoutAReader) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.stop_reading();
  OutputQueue queue([] {});
  queue.add(pipe.in(), "for nobody");
  EXPECT_TRUE(queue.empty_within(timeout));
  EXPECT_TRUE(queue.closed());
  queue.add(pipe.in(), std::string(2 * OutputQueue::most, 'x'));
  EXPECT_FALSE(queue.full());
}

TEST(OutputQueue, DestructionWaitsForNoReader) {
  Pipe pipe;
  {
    OutputQueue queue([] {});
    queue.add(pipe.in(), std::string(OutputQueue::most, 'x'));
    EXPECT_EQ(pipe.read(1), "x");  // the text is being written
    queue.close();
    EXPECT_TRUE(queue.empty());
  }
  pipe.read(OutputQueue::most - 1);  // the thread exits
}

}  // namespace
}  // namespace weft::tool::launch::output_queue_test
