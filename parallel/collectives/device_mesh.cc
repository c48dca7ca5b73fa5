#include <weft/parallel/collectives/device_mesh.h>

#include <weft/parallel/collectives/internal/group/group_core.h>
#include <weft/rpc/core/when_all.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <algorithm>
#include <set>

namespace weft::collectives {
namespace {

constexpr std::size_t max_dimensions = 16;

void check(const Group& group, const std::vector<DeviceMesh::Dimension>& dimensions) {
  if (dimensions.size() > max_dimensions)
    refuse("DeviceMesh: a mesh of " + std::to_string(dimensions.size()) + " dimensions, expected at most " +
           std::to_string(max_dimensions));
  std::int64_t ranks = 1;
  std::set<std::string> names;
  for (const auto& [name, size] : dimensions) {
    if (!names.insert(name).second)
      refuse("DeviceMesh: two dimensions have the name '" + name + "', expected unique names");
    if (size < 1)
      refuse("DeviceMesh: dimension '" + name + "' has the size " + std::to_string(size) +
             ", expected at least 1");
    ranks *= size;
  }
  if (ranks != group.size())
    refuse("DeviceMesh: a mesh of " + std::to_string(ranks) + " ranks over a group of " +
           std::to_string(group.size()) + ", expected equal numbers");
}

}  // namespace

rpc::Future<DeviceMesh> DeviceMesh::create(const Group& group, std::vector<Dimension> dimensions,
                                           Group::Site site) {
  check(group, dimensions);
  std::string meaning = "DeviceMesh::create(";
  for (const auto& [name, size] : dimensions)
    meaning += (meaning.back() == '(' ? "" : ", ") + name + " " + std::to_string(size);
  // All members reserve the same number of rounds, even if they give different meshes.
  const std::uint64_t rounds = group.core_->values().reserve_rounds(1 + 2 * max_dimensions);
  rpc::Promise<DeviceMesh> promise;
  auto future = promise.future();
  group.core_->values()
      .give({rounds}, meaning + ")", site, rpc::Buffer{}, false, std::nullopt)
      .then([group, dimensions = std::move(dimensions), rounds, site,
             promise = std::move(promise)](rpc::Result<Group::Objects>&& same) mutable {
        if (!same.ok()) return promise.fail(same.error());
        make(group, std::move(dimensions), rounds + 1, site)
            .then([promise = std::move(promise)](rpc::Result<DeviceMesh>&& mesh) mutable {
              promise.complete(std::move(mesh));
            });
      });
  return future;
}

// Creates a group along each dimension, in two rounds of values for each group.
rpc::Future<DeviceMesh> DeviceMesh::make(const Group& group, std::vector<Dimension> dimensions,
                                         std::uint64_t rounds, const Group::Site& site) {
  DeviceMesh mesh;
  std::vector<rpc::Future<std::optional<Group>>> groups;
  int stride = group.size();
  for (const auto& [name, size] : dimensions) {
    stride /= size;
    const int coordinate = group.rank() / stride % size;
    mesh.coordinates_.push_back(coordinate);
    GroupOptions options = group.options();
    options.name = name;
    // The members that differ only in this coordinate: the other coordinates together are their color.
    groups.push_back(group.split_in(rounds, group.rank() - coordinate * stride, coordinate, options, site));
    rounds += 2;
  }
  mesh.dimensions_ = std::move(dimensions);
  return rpc::when_all(std::move(groups))
      .then([mesh = std::move(mesh)](rpc::Result<std::vector<std::optional<Group>>>&& made) mutable {
        return rpc::capture([&] {
          for (std::optional<Group>& each : std::move(made).get()) mesh.groups_.push_back(std::move(*each));
          return std::move(mesh);
        });
      });
}

std::size_t DeviceMesh::index_of(const std::string& dimension) const {
  const auto found = std::find_if(dimensions_.begin(), dimensions_.end(),
                                  [&](const Dimension& each) { return each.name == dimension; });
  if (found == dimensions_.end()) {
    std::string names;
    for (const Dimension& each : dimensions_) names += (names.empty() ? "'" : ", '") + each.name + "'";
    refuse("DeviceMesh: there is no dimension '" + dimension + "', expected one of " + names);
  }
  return static_cast<std::size_t>(found - dimensions_.begin());
}

}  // namespace weft::collectives
