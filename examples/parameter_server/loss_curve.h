// The loss curve of a run, as a table and as a picture.
#pragma once

#include <string>
#include <vector>

#include "parameter_server/scoreboard.h"

std::string loss_csv(const std::vector<Point>& points);
std::string loss_svg(const std::vector<Point>& points, const std::string& title);

// Writes loss.csv and loss.svg into the folder, which is made where it is missing.
void write_loss_curve(const std::vector<Point>& points, const std::string& title, const std::string& folder);
