// StepRound: the trainers for which a synchronous round waits, and the effect on the round if a trainer
// leaves or dies.
//
// A round is complete when every trainer has arrived with its step. If the mode gives the number of trainers,
// the round has as many seats, and also waits for seats that no trainer has taken yet. If a trainer leaves,
// the round has one seat fewer until a new trainer joins, so the other trainers continue. A death fails the
// round: each survivor gets the error exactly once, at its step in flight or else at its next one. While the
// seat of a dead trainer is empty, every step fails, because the round could not complete.
//
// Pure data: no thread, no callback. Owner: OwnedParameters, under its mutex.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace weft::dist_optim {

class WEFT_EXPORT StepRound {
 public:
  // 0: as many seats as there are trainers.
  explicit StepRound(std::size_t seats) : seats_(seats) {}

  // `invalid_argument` if all seats are taken. name: the trainer's name in messages; empty: its key.
  void join(const std::string& trainer, const std::string& name = {});
  // A step of this trainer that has arrived stays in the round.
  void leave(const std::string& trainer);
  // Fails the round, which then starts again. Returns the trainers that had arrived: their steps have failed.
  std::vector<std::string> die(const std::string& trainer);

  // arrive() adds the trainer's step to the round; expect() only performs its checks. `failed_precondition`:
  // a step of the trainer is in flight. `aborted`, which names the dead trainer: another trainer has died,
  // and this one has not received the error yet.
  void expect(const std::string& trainer);
  void arrive(const std::string& trainer);

  // A trainer has arrived, or a round is being closed.
  bool in_flight() const { return !arrived_.empty() || !closing_.empty(); }
  // False also while a round is being closed.
  bool complete() const;
  // The complete round is about to be applied; trainers that arrive from now on are in the next round.
  void close();
  // A trainer's step has completed or failed: it may arrive again.
  void finish(const std::string& trainer);

  // The error of the survivors. name: of the trainer that died.
  static std::string describe_death(const std::string& name);

 private:
  bool seats_empty() const { return trainers_.size() + vacated_ < seats_; }

  const std::size_t seats_;
  std::size_t vacated_ = 0;                      // seats of trainers that have left
  std::map<std::string, std::string> trainers_;  // with their names
  std::set<std::string> arrived_;
  std::set<std::string> closing_;               // of the round that is being closed
  std::map<std::string, std::string> to_hear_;  // survivor → the trainer that died since its last step
  std::string missed_;                          // the last trainer that died and was not replaced
};

}  // namespace weft::dist_optim
