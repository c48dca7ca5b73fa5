#include "fashion_mnist/loss_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string_view>

namespace {

constexpr double width = 720, height = 420, left = 60, right = 20, top = 40, bottom = 50;
constexpr int line_styles = 4;
// Styles for light and dark pages, with four styles for the lines of trainers.
constexpr std::string_view style = R"(<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 14px; font-weight: 600 }
  .page { fill: #ffffff } .grid { stroke: #e3e7eb } polyline { fill: none; stroke-width: 1.5 }
  .line0 { stroke: #0969da } .line1 { stroke: #c4621b } .line2 { stroke: #1a7f37 } .line3 { stroke: #8250df }
  .name0 { fill: #0969da } .name1 { fill: #c4621b } .name2 { fill: #1a7f37 } .name3 { fill: #8250df }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .page { fill: #0d1117 } .grid { stroke: #2a3139 }
    .line0 { stroke: #58a6ff } .line1 { stroke: #e08a2c } .line2 { stroke: #3fb950 } .line3 { stroke: #ab7df8 }
    .name0 { fill: #58a6ff } .name1 { fill: #e08a2c } .name2 { fill: #3fb950 } .name3 { fill: #ab7df8 }
  }
</style>
)";

// A step between grid lines: 1, 2 or 5 times a power of ten, for about six lines.
double grid_step(double range) {
  const double rough = std::max(range, 1e-9) / 6, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1, 2, 5})
    if (factor * power >= rough) return factor * power;
  return 10 * power;
}

}  // namespace

std::string loss_csv(const std::vector<Point>& points, int digits) {
  std::string text = "trainer,images,seconds,loss\n";
  for (const Point& point : points)
    text +=
        fmt::format("{},{},{:.3f},{:.{}f}\n", point.trainer, point.images, point.seconds, point.loss, digits);
  return text;
}

std::string loss_svg(const std::vector<Point>& points, const std::string& title) {
  std::map<std::string, std::vector<Point>> curves;
  double seconds = 0, loss = 0;
  for (const Point& point : points) {
    curves[point.trainer].push_back(point);
    seconds = std::max(seconds, point.seconds);
    loss = std::max(loss, point.loss);
  }
  const double x_step = grid_step(seconds), y_step = grid_step(loss);
  const double x_end = std::ceil(seconds / x_step) * x_step, y_end = std::ceil(loss / y_step) * y_step;
  const auto x = [&](double value) { return left + (width - left - right) * value / std::max(x_end, 1e-9); };
  const auto y = [&](double value) {
    return height - bottom - (height - top - bottom) * value / std::max(y_end, 1e-9);
  };

  std::string svg;
  const auto out = std::back_inserter(svg);
  fmt::format_to(
      out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n"
      "{4}<rect width=\"{0}\" height=\"{1}\" class=\"page\"/>\n"
      "<text x=\"{2}\" y=\"22\" class=\"title\">{3}</text>\n",
      width, height, left, title, style);
  for (double value = 0; value <= x_end + x_step / 2; value += x_step)
    fmt::format_to(out,
                   "<path d=\"M{0:.1f} {1}V{2}\" class=\"grid\"/><text x=\"{0:.1f}\" y=\"{3}\" "
                   "text-anchor=\"middle\">{4:g}</text>\n",
                   x(value), top, height - bottom, height - bottom + 16, value);
  for (double value = 0; value <= y_end + y_step / 2; value += y_step)
    fmt::format_to(out,
                   "<path d=\"M{0} {1:.1f}H{2}\" class=\"grid\"/><text x=\"{3}\" y=\"{4:.1f}\" "
                   "text-anchor=\"end\">{5:g}</text>\n",
                   left, y(value), width - right, left - 6, y(value) + 4, value);
  fmt::format_to(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">seconds</text>\n",
                 (left + width - right) / 2, height - 12);
  fmt::format_to(out,
                 "<text x=\"16\" y=\"{0}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {0})\">training "
                 "loss</text>\n",
                 (top + height - bottom) / 2);

  double legend = top + 16;
  int number = 0;
  for (const auto& [trainer, curve] : curves) {
    const int kind = number++ % line_styles;
    fmt::format_to(out, "<polyline class=\"line{}\" points=\"", kind);
    for (const Point& point : curve) fmt::format_to(out, "{:.1f},{:.1f} ", x(point.seconds), y(point.loss));
    fmt::format_to(out, "\"/>\n<text x=\"{}\" y=\"{}\" text-anchor=\"end\" class=\"name{}\">{}</text>\n",
                   width - right - 8, legend, kind, trainer);
    legend += 16;
  }
  return svg + "</svg>\n";
}

void write_file(const std::string& path, const std::string& text) {
  if (!(std::ofstream(path) << text).flush()) throw std::runtime_error(fmt::format("cannot write {}", path));
}

void write_loss_curve(const std::vector<Point>& points, const std::string& title, const std::string& folder,
                      int digits) {
  const std::filesystem::path to = folder;
  std::filesystem::create_directories(to);
  write_file(to / "loss.csv", loss_csv(points, digits));
  write_file(to / "loss.svg", loss_svg(points, title));
}
