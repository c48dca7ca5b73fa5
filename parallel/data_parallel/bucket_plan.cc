#include <weft/parallel/data_parallel/bucket_plan.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace weft::data_parallel {
namespace {

// The bucket of a dtype and a device that is being filled.
struct Open {
  c10::ScalarType dtype;
  c10::Device device;
  std::vector<std::size_t> parameters;
  std::size_t bytes = 0;
  std::size_t cap = 0;  // the index in `caps`
};

[[noreturn]] void refuse(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "plan_buckets: " + why);
}

}  // namespace

BucketPlan plan_buckets(std::span<const ParameterSpec> parameters, std::span<const std::size_t> caps,
                        std::span<const std::size_t> order) {
  if (caps.empty()) refuse("no bucket caps given, expected at least one");
  if (order.size() != parameters.size())
    refuse("the order has " + std::to_string(order.size()) + " entries, expected one for each of " +
           std::to_string(parameters.size()) + " parameters");
  std::vector<bool> seen(parameters.size());
  BucketPlan plan;
  std::vector<Open> open;
  for (const std::size_t index : order) {
    if (index >= parameters.size())
      refuse("the order has the index " + std::to_string(index) + ", expected indices below " +
             std::to_string(parameters.size()) + ", the number of parameters");
    if (seen[index])
      refuse("the order has the index " + std::to_string(index) + " twice, expected a permutation");
    seen[index] = true;
    const ParameterSpec& parameter = parameters[index];
    if (parameter.sparse) {
      plan.push_back({index});
      continue;
    }
    auto bucket = std::find_if(open.begin(), open.end(), [&](const Open& each) {
      return each.dtype == parameter.dtype && each.device == parameter.device;
    });
    if (bucket == open.end()) bucket = open.insert(open.end(), Open{parameter.dtype, parameter.device, {}});
    bucket->parameters.push_back(index);
    bucket->bytes += parameter.bytes;
    if (bucket->bytes < caps[bucket->cap]) continue;
    plan.push_back(std::exchange(bucket->parameters, {}));
    bucket->bytes = 0;
    bucket->cap = std::min(bucket->cap + 1, caps.size() - 1);
  }
  std::vector<std::size_t> place(parameters.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::erase_if(open, [](const Open& each) { return each.parameters.empty(); });
  std::sort(open.begin(), open.end(), [&](const Open& a, const Open& b) {
    return place[a.parameters.front()] < place[b.parameters.front()];
  });
  for (Open& rest : open) plan.push_back(std::move(rest.parameters));
  return plan;
}

BucketPlan split_last_bucket(BucketPlan plan, std::span<const ParameterSpec> parameters, std::size_t bytes) {
  if (plan.empty()) return plan;
  auto& last = plan.back();
  auto tail = last.end();
  for (std::size_t sum = 0; tail != last.begin() && (sum += parameters[*(tail - 1)].bytes) <= bytes;) --tail;
  if (tail == last.begin() || tail == last.end()) return plan;
  std::vector<std::size_t> own(tail, last.end());
  last.erase(tail, last.end());
  plan.push_back(std::move(own));
  return plan;
}

std::vector<std::size_t> reverse_order(std::size_t parameters) {
  std::vector<std::size_t> order(parameters);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

}  // namespace weft::data_parallel
