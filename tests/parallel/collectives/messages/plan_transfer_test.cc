#include <weft/parallel/collectives/internal/messages/plan_transfer.h>
#include <weft/parallel/collectives/plan/internal/algorithms.h>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <random>

namespace weft::collectives::testing {
namespace plan_transfer_test {

// A network whose events occur in a random order. The bytes of a message are read some time after it was
// sent, and arrive some time later.
class Network {
 public:
  explicit Network(std::uint64_t seed) : random_(seed) {}

  class Port final : public Outbox {
   public:
    Port(Network& network, int rank) : network_(network), rank_(rank) {}
    void send(int to, std::uint32_t label, const rpc::Buffer& bytes, rpc::Callback left) override {
      network_.events_.push_back([this, to, label, bytes, left = std::move(left)]() mutable {
        network_.events_.push_back([this, to, label, message = rpc::Buffer::copy(bytes.bytes())]() mutable {
          network_.runs[to]->deliver(rank_, label, std::move(message));
        });
        left();
      });
    }

   private:
    Network& network_;
    int rank_;
  };

  void begin() {
    for (std::size_t rank = 0; rank < runs.size(); ++rank) {
      ports_.push_back(std::make_unique<Port>(*this, static_cast<int>(rank)));
      events_.push_back([this, rank] { runs[rank]->begin(*ports_[rank]); });
    }
  }
  void run() {
    begin();
    while (!events_.empty()) {
      std::swap(events_[random_() % events_.size()], events_.back());
      rpc::Callback event = std::move(events_.back());
      events_.pop_back();
      event();
    }
  }

  std::vector<std::shared_ptr<PlanTransfer>> runs;

 private:
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<rpc::Callback> events_;
};

const std::byte* bytes(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}
std::byte* bytes(at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

using MakePlan = std::function<Plan(Member, std::size_t)>;

// Runs an all_reduce in place on the tensors of all ranks.
void all_reduce(std::vector<at::Tensor>& tensors, ReduceOp op, const MakePlan& make, std::size_t chunk,
                std::uint64_t seed) {
  Network network(seed);
  const int ranks = static_cast<int>(tensors.size());
  std::vector<bool> done(tensors.size());
  for (int rank = 0; rank < ranks; ++rank) {
    auto& tensor = tensors[rank];
    const Reduction reduction(op, tensor.scalar_type());
    PlanMemory memory{.input = bytes(tensor), .output = bytes(tensor), .item_size = reduction.item_size()};
    if (!reduction.accumulates_wide()) memory.accumulator = memory.output;
    network.runs.push_back(std::make_shared<PlanTransfer>(
        rank, ranks, make({.rank = rank, .ranks = ranks, .chunk = chunk}, tensor.numel()), memory, reduction,
        [&done, rank](const std::exception_ptr& error) {
          EXPECT_EQ(error, nullptr);
          done[rank] = true;
        }));
  }
  network.run();
  for (int rank = 0; rank < ranks; ++rank) EXPECT_TRUE(done[rank]) << rank;
}

TEST(PlanTransfer, ReducesTensorsInPlaceToTheSameBitsOnAllRanks) {
  const std::vector<MakePlan> algorithms{ring_all_reduce, doubling_all_reduce, halving_all_reduce};
  for (const auto type :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong, torch::kUInt8}) {
    for (const auto& op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max}) {
      for (const int ranks : {1, 2, 3, 4, 5, 8}) {
        for (const auto& make : algorithms) {
          SCOPED_TRACE(::testing::Message() << op.name() << " of " << type << " over " << ranks);
          torch::manual_seed(ranks);
          std::vector<at::Tensor> given, tensors;
          for (int rank = 0; rank < ranks; ++rank) {
            given.push_back((torch::randn({1000}, torch::kDouble) * 5).to(type));
            tensors.push_back(given.back().clone());
          }
          all_reduce(tensors, op, make, 64, static_cast<std::uint64_t>(ranks));
          for (const auto& tensor : tensors) ASSERT_TRUE(torch::equal(tensor, tensors[0]));
          auto again = given;
          for (auto& tensor : again) tensor = tensor.clone();
          all_reduce(again, op, make, 64, 77);
          ASSERT_TRUE(torch::equal(again[0], tensors[0]));

          const auto wide = torch::stack(given).to(torch::kDouble);
          auto expected = op.kind == ReduceOp::Kind::max   ? wide.amax(0)
                          : op.kind == ReduceOp::Kind::sum ? wide.sum(0)
                                                           : wide.sum(0) / ranks;
          if (type == torch::kUInt8 && op.kind != ReduceOp::Kind::max) continue;  // sums would overflow
          if (type == torch::kLong) expected = expected.trunc();
          // Each partial sum may be rounded to the accumulator's type, and the result to the tensor's type.
          const double accumulator = type == torch::kDouble ? 0x1p-53 : 0x1p-24;
          const double rounding = type == torch::kHalf ? 0x1p-11 : type == torch::kBFloat16 ? 0x1p-8 : 0;
          const auto bound = wide.abs().sum(0) * (ranks * accumulator * 2) + expected.abs() * rounding;
          ASSERT_TRUE(((tensors[0].to(torch::kDouble) - expected).abs() <= bound).all().item<bool>());
        }
      }
    }
  }
}

TEST(PlanTransfer, OfNarrowTypesRoundsOnceOverAllRanks) {
  for (const MakePlan make : {ring_all_reduce, doubling_all_reduce, halving_all_reduce}) {
    std::vector<at::Tensor> tensors;
    for (int rank = 0; rank < 5; ++rank)
      tensors.push_back(torch::full({20}, rank == 0 ? 2048.0 : 1.0, torch::kHalf));
    all_reduce(tensors, ReduceOp::sum, make, 0, 1);
    EXPECT_TRUE(torch::equal(tensors[3], torch::full({20}, 2052.0, torch::kHalf)));
  }
}

struct Single {  // rank 1 of 2 in a ring all_reduce of 10 floats
  Single() {
    PlanMemory memory{
        .input = bytes(tensor), .accumulator = bytes(tensor), .output = bytes(tensor), .item_size = 4};
    run = std::make_shared<PlanTransfer>(1, 2, ring_all_reduce({.rank = 1, .ranks = 2}, 10), memory,
                                         Reduction(ReduceOp::sum, torch::kFloat),
                                         [this](std::exception_ptr result) {
                                           ended = true;
                                           error = std::move(result);
                                         });
  }
  void expect_protocol_error() const {
    ASSERT_TRUE(ended);
    try {
      std::rethrow_exception(error);
    } catch (const rpc::Error& failure) {
      EXPECT_EQ(failure.kind(), rpc::ErrorKind::protocol_error) << failure.what();
    }
  }

  struct Nowhere final : Outbox {
    void send(int, std::uint32_t, const rpc::Buffer&, rpc::Callback left) override {
      jobs.push_back(std::move(left));
    }
    std::vector<rpc::Callback> jobs;
  };
  at::Tensor tensor = torch::ones({10});
  Nowhere outbox;
  std::shared_ptr<PlanTransfer> run;
  bool ended = false;
  std::exception_ptr error;
};

rpc::Buffer floats(std::size_t n) {
  const std::vector<float> ones(n, 1);
  return rpc::Buffer::copy(std::as_bytes(std::span(ones)));
}

// A connection borrows the memory of large messages until the peer has acknowledged them.
TEST(PlanTransfer, CopiesItsLastMessagesAndDoesNotWaitForTheirAcknowledgement) {
  constexpr std::size_t elements = 1 << 18, chunk = 1 << 16;  // 1 MiB, in messages of 256 KiB
  struct Sent final : Outbox {
    void send(int, std::uint32_t label, const rpc::Buffer& bytes, rpc::Callback left) override {
      messages.emplace_back(label, bytes);
      if (bytes.data() >= memory.data() && bytes.data() < memory.data() + memory.size()) return left();
      copied += bytes.size();
      unacknowledged.push_back(std::move(left));
    }
    std::span<const std::byte> memory;
    std::vector<std::pair<std::uint32_t, rpc::Buffer>> messages;
    std::vector<rpc::Callback> unacknowledged;
    std::size_t copied = 0;
  };
  std::vector<at::Tensor> tensors{torch::full({elements}, 1.0F), torch::full({elements}, 2.0F)};
  std::vector<Sent> sent(2);
  std::vector<std::shared_ptr<PlanTransfer>> runs;
  std::vector<bool> done(2);
  rpc::MemoryPool pool(4 << 20);
  for (int rank = 0; rank < 2; ++rank) {
    std::byte* const memory = bytes(tensors[rank]);
    sent[rank].memory = {memory, elements * sizeof(float)};
    runs.push_back(std::make_shared<PlanTransfer>(
        rank, 2, ring_all_reduce({.rank = rank, .ranks = 2, .chunk = chunk}, elements),
        PlanMemory{.input = memory, .accumulator = memory, .output = memory, .item_size = sizeof(float)},
        Reduction(ReduceOp::sum, torch::kFloat),
        [&, rank](const std::exception_ptr& error) {
          EXPECT_EQ(error, nullptr);
          done[rank] = true;
          EXPECT_TRUE(tensors[rank].eq(3).all().item<bool>());
          tensors[rank].zero_();  // the owner may write to the tensor now
        },
        std::nullopt, 0, &pool));
    runs[rank]->begin(sent[rank]);
  }
  std::vector<std::size_t> delivered(2);
  for (bool moved = true; std::exchange(moved, false);) {
    for (int rank = 0; rank < 2; ++rank) {
      if (delivered[rank] == sent[rank].messages.size()) continue;
      const auto [label, message] = sent[rank].messages[delivered[rank]++];
      runs[1 - rank]->deliver(rank, label, message);
      moved = true;
    }
  }
  EXPECT_TRUE(done[0] && done[1]);
  for (const Sent& one : sent) EXPECT_EQ(one.copied, 512U << 10);
  EXPECT_EQ(pool.counts().misses, 4U);  // two copies for each rank
}

TEST(PlanTransfer, RefusesAMessageOfAnotherSize) {
  Single at;
  at.run->begin(at.outbox);
  at.run->deliver(0, 0, floats(4));
  at.expect_protocol_error();
}

TEST(PlanTransfer, RefusesAMessageThatNoStepExpects) {
  for (const auto& [from, label] : {std::pair{0, 9U}, std::pair{1, 0U}, std::pair{7, 0U}}) {
    Single at;
    at.run->begin(at.outbox);
    at.run->deliver(from, label, floats(5));
    at.expect_protocol_error();
  }
}

TEST(PlanTransfer, RefusesADuplicateMessage) {
  for (const bool begun : {false, true}) {
    Single at;
    if (begun) at.run->begin(at.outbox);
    at.run->deliver(0, 0, floats(5));
    EXPECT_FALSE(at.ended);
    at.run->deliver(0, 0, floats(5));
    at.expect_protocol_error();
  }
}

TEST(PlanTransfer, KeepsMessagesThatArriveBeforeItStarts) {
  Single at;
  at.run->deliver(0, 1, floats(5));
  at.run->deliver(0, 0, floats(5));
  EXPECT_TRUE(at.run->awaited().empty());
  at.run->begin(at.outbox);
  while (!at.outbox.jobs.empty()) {
    rpc::Callback left = std::move(at.outbox.jobs.back());
    at.outbox.jobs.pop_back();
    left();
  }
  EXPECT_TRUE(at.ended);
  EXPECT_EQ(at.error, nullptr);
  EXPECT_TRUE(torch::equal(at.tensor, torch::cat({torch::ones({5}), torch::full({5}, 2.0)})));
}

TEST(PlanTransfer, CompletesOnceAndDoesNotTouchItsMemoryAfterwards) {
  Single at;
  at.run->begin(at.outbox);
  EXPECT_EQ(at.run->awaited(), std::vector<int>{0});
  at.run->fail(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "for a test")));
  EXPECT_TRUE(at.ended);
  at.ended = false;
  at.run->deliver(0, 0, floats(5));
  at.run->fail(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "again")));
  for (auto& left : at.outbox.jobs) left();
  EXPECT_FALSE(at.ended);
  EXPECT_TRUE(torch::equal(at.tensor, torch::ones({10})));
}

TEST(PlanTransfer, LivesAsLongAsItsMemoryIsLent) {
  Single at;
  at.run->begin(at.outbox);
  const std::weak_ptr<PlanTransfer> run = at.run;
  at.run->fail(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "for a test")));
  at.run = nullptr;
  EXPECT_FALSE(run.expired());
  at.outbox.jobs.clear();  // destroys the jobs without running them
  EXPECT_TRUE(run.expired());
}

}  // namespace plan_transfer_test
}  // namespace weft::collectives::testing
