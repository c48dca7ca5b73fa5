// The part of a LocalSgd: the outer parameters, the outer optimizer and the number of rounds are equal on all
// ranks. The parameters themselves, which each rank moves in its inner steps, are not synchronized: a rank
// that has taken part in the last round keeps its inner steps, and another one begins with the outer
// parameters.
#include <weft/parallel/elastic/internal/tensor_memory.h>
#include <weft/parallel/elastic/state.h>
#include <weft/parallel/training/broadcast_state.h>
#include <weft/rpc/codec/struct_codec.h>

#include <random>

namespace weft::elastic::detail {
namespace {

// Rounds of one training: workers that started apart have different ones.
struct RoundsMessage {
  std::uint64_t training = 0, rounds = 0;
  friend bool operator==(const RoundsMessage&, const RoundsMessage&) = default;
};
WEFT_CODEC(RoundsMessage, training, rounds)

class LocalSgdPart final : public StatePart {
 public:
  explicit LocalSgdPart(data_parallel::LocalSgd& outer) : outer_(outer) {
    if (outer.outer_optimizer() != nullptr) optimizer_ = optimizer_part(*outer.outer_optimizer());
    std::random_device random;
    training_ = (std::uint64_t{random()} << 32) | random();
  }

  std::string kind() const override {
    return "local SGD" + (optimizer_ == nullptr ? std::string() : " with " + optimizer_->kind());
  }
  void commit() override {
    memory_.store(outer_.outer_parameters());
    rounds_ = outer_.rounds();
    if (optimizer_ != nullptr) optimizer_->commit();
  }
  void restore() override {
    memory_.load(outer_.outer_parameters());
    outer_.set_rounds(rounds_);
    if (optimizer_ != nullptr) optimizer_->restore();
    outer_.reset();
  }
  void mark() override {
    if (optimizer_ != nullptr) optimizer_->mark();
  }
  void rewind() override {
    if (optimizer_ != nullptr) optimizer_->rewind();
    outer_.begin_round();
  }
  void sync(const collectives::Group& group, int source) override {
    const RoundsMessage own{training_, outer_.rounds()};
    const RoundsMessage now = group.broadcast_object(own, source).get();
    training::broadcast_tensors(group, outer_.outer_parameters(), source).get();
    if (optimizer_ != nullptr) optimizer_->sync(group, source);
    training_ = now.training;
    outer_.set_rounds(now.rounds);
    if (own == now) {
      outer_.begin_round();
    } else {
      outer_.reset();
    }
  }

 private:
  data_parallel::LocalSgd& outer_;
  std::shared_ptr<StatePart> optimizer_;  // null: none
  std::uint64_t training_ = 0;
  TensorMemory memory_;
  std::uint64_t rounds_ = 0;
};

}  // namespace

std::shared_ptr<StatePart> local_sgd_part(data_parallel::LocalSgd& outer) {
  return std::make_shared<LocalSgdPart>(outer);
}

}  // namespace weft::elastic::detail
