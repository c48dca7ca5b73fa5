// The loss curve of a run, as a table and as a picture.
#pragma once

#include <weft/rpc/rpc.h>

#include <cstdint>
#include <string>
#include <vector>

// The progress of one trainer.
struct Point {
  std::string trainer;
  std::int64_t images = 0;  // seen so far
  std::int64_t before = 0;  // the images that the resumed run had seen
  double seconds = 0;       // the time since the first batch
  double loss = 0;
};
WEFT_CODEC(Point, trainer, images, before, seconds, loss)

// digits: of a loss, after the decimal point.
std::string loss_csv(const std::vector<Point>& points, int digits = 6);
std::string loss_svg(const std::vector<Point>& points, const std::string& title);

// Throws std::runtime_error if the file cannot be written.
void write_file(const std::string& path, const std::string& text);

// Writes loss.csv and loss.svg into the folder, which is created if it is missing.
void write_loss_curve(const std::vector<Point>& points, const std::string& title, const std::string& folder,
                      int digits = 6);
