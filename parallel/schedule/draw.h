// Pictures of schedules: SVG, and a table of characters. Pure functions.
#pragma once

#include <weft/parallel/schedule/simulate.h>

#include <string>
#include <vector>

namespace weft::schedule {

// A row of ranks over time: predicted, or measured by an executor.
struct Panel {
  std::string title;
  Timeline timeline;
};

// Sizes and what is shown.
struct DrawOptions {
  int width = 860;         // pixels
  int row_height = 24;     // of a rank
  bool transfers = false;  // draw the messages as lines between the ranks
};

// The panels under each other on one scale of time, and a legend of the kinds of computation that they have.
// A computation shows its micro-batch where there is room, and, in a title that viewers show, its text form
// and times. Stages after the first one of a rank are lighter. invalid_argument: a timeline of other ranks or
// actions.
WEFT_EXPORT std::string svg(const Schedule& schedule, const std::vector<Panel>& panels,
                            const DrawOptions& options = {});

// One line a rank, one column for each duration of the shortest computation: "F0 F1 .. B0". A computation
// that takes longer continues as dots; a pair is "0F4+7B3". Actions that take no time are left out.
WEFT_EXPORT std::string table(const Schedule& schedule, const Timeline& timeline);

}  // namespace weft::schedule
