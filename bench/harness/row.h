// Row: the result of one measurement, one row for each case, peer and round. It is written as one JSON object
// per line. Thread-safety: a value.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft::bench {

// p50_us, p99_us, calls_per_s, GBps, steps_per_s, KiB, MiB, …: a name has the same meaning in every bench.
using Figures = std::map<std::string, double>;
// How the peer is used: `wait`, `caller`, `transport`, …
using Notes = std::map<std::string, std::string>;

struct Row {
  std::string bench, case_name, peer;
  int round = 0;        // from 1
  std::string pins;     // cores of each process: "0/1"
  std::string threads;  // number of threads of each process at its exit: "2/4"
  Notes notes;
  Figures figures;
  std::string error;  // why there are no figures
};

std::string to_json(const Row& row);  // one line, without a newline

// For rates, higher is better. For times and memory, lower is better.
bool higher_is_better(std::string_view figure);
// Sorts figures into display order: times and memory before rates.
std::vector<std::string> in_order(std::vector<std::string> figures);
// The figure by which measurements are compared: the first of them. Empty if there are no figures.
std::string leading_figure(const Figures& figures);
std::string heading(const std::string& figure);  // "p50_us" -> "p50 us"
std::string number(double value);                // three significant digits

}  // namespace weft::bench
