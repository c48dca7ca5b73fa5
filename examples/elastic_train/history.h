// The history of a training, with a row for every ten steps, and pictures of the history.
#pragma once

#include <weft/rpc/rpc.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

struct Row {
  std::int64_t step = 0;
  double loss = 0;  // mean over the steps since the last row
  std::uint64_t generation = 0;
  std::vector<std::string> workers;  // by rank
};
WEFT_CODEC(Row, step, loss, generation, workers)

// "step 120  loss 0.5312  generation 7  worker0 worker2". row_of: nullopt for other lines.
std::string to_line(const Row& row);
std::optional<Row> row_of(const std::string& line);

// Writes loss.csv and membership.svg into the folder. membership.svg shows the losses above a bar for each
// worker. The folder is created if it is missing.
void write_history(const std::vector<Row>& rows, const std::string& title, const std::string& folder);

// The history so far, in a terminal: a line of losses, a bar for each worker, and the latest notes. If the
// standard output is no terminal, each row and note is a line.
class LivePicture {
 public:
  explicit LivePicture(std::int64_t steps);
  void add(const Row& row);
  void add_note(const std::string& note);

 private:
  void draw();

  const bool terminal_;
  const std::int64_t steps_;  // the number of steps of the whole training
  std::vector<Row> rows_;
  std::vector<std::string> notes_;
  std::size_t drawn_ = 0;  // lines
};
