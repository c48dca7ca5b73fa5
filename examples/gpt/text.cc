#include "gpt/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace fs = std::filesystem;

at::Tensor bytes_of(std::string_view text) {
  const std::vector<std::int64_t> numbers(reinterpret_cast<const unsigned char*>(text.data()),
                                          reinterpret_cast<const unsigned char*>(text.data() + text.size()));
  return at::tensor(numbers).unsqueeze(0);
}

Text::Text(const std::string& path, std::int64_t length) : length_(length) {
  std::ifstream file(path, std::ios::binary);
  all_.assign(std::istreambuf_iterator<char>(file), {});
  const auto least = std::max<std::int64_t>(10'000, 20 * length);
  if (std::ssize(all_) < least)
    throw std::runtime_error(
        fmt::format("{} has {} bytes: expected at least {} to learn from", path, all_.size(), least));
  training_ = all_.size() / 10 * 9;
  bytes_ = bytes_of(all_).squeeze(0);
}

// The text is the descriptions of Perl's messages, 300 KB. If they are not installed, it is the GPL, which is
// on every Debian machine.
std::string Text::default_path() {
  std::error_code error;
  for (const auto& version : fs::directory_iterator("/usr/share/perl", error))
    if (const fs::path text = version.path() / "pod" / "perldiag.pod"; fs::exists(text)) return text;
  return "/usr/share/common-licenses/GPL-3";
}

Batch Text::at_places(const at::Tensor& places) const {
  const at::Tensor all = places.unsqueeze(1) + at::arange(length_);
  return {bytes_.take(all), bytes_.take(all + 1)};
}

Batch Text::batch(std::uint64_t seed, std::int64_t rows) const {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto places = static_cast<std::int64_t>(training_) - length_;
  return at_places(at::randint(places, {rows}, generator, at::TensorOptions(at::kLong)));
}

std::vector<Batch> Text::held_out_batches(std::int64_t rows) const {
  const auto first = static_cast<std::int64_t>(training_), end = bytes_.size(0) - length_;
  std::vector<Batch> batches;
  for (const at::Tensor& places : at::arange(first, end, length_, at::kLong).split(rows))
    batches.push_back(at_places(places));
  return batches;
}
