// Pictures of schedules: SVG, and a table of characters. Pure functions.
#pragma once

#include <weft/parallel/schedule/simulate.h>

#include <string>
#include <vector>

namespace weft::schedule {

// One timeline of all ranks in a picture, predicted or measured by an executor.
struct Panel {
  std::string title;
  Timeline timeline;
};

// Sizes and contents of a picture.
struct DrawOptions {
  int width = 860;         // pixels
  int row_height = 24;     // of a rank
  bool transfers = false;  // draw the messages as lines between the ranks
};

// Draws the panels below each other on one scale of time, with a legend of their kinds of computation. A
// computation is labelled with its micro-batch if there is room. A tool tip (the title in the SVG) shows the
// text form and the times of the computation. Stages of a rank after its first one are lighter.
// invalid_argument: a timeline has other ranks or actions than the schedule.
WEFT_EXPORT std::string svg(const Schedule& schedule, const std::vector<Panel>& panels,
                            const DrawOptions& options = {});

// One line a rank, one column for each duration of the shortest computation: "F0 F1 .. B0". A computation
// that takes longer continues as dots; a pair is "0F4+7B3". Actions that take no time are left out.
WEFT_EXPORT std::string table(const Schedule& schedule, const Timeline& timeline);

}  // namespace weft::schedule
