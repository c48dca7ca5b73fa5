// DeviceMesh: the ranks of a group as a grid with named dimensions, and a group along each dimension.
//
//   const std::vector<DeviceMesh::Dimension> grid{{"data", 2}, {"tensor", 4}};
//   auto mesh = co_await DeviceMesh::create(world, grid);
//   co_await mesh.group("data").all_reduce(gradient);
//
// Ranks are numbered in row-major order: the coordinate of the last dimension changes fastest. A value:
// copies refer to the same groups. As thread-safe as Group.
#pragma once

#include <weft/parallel/collectives/group.h>

namespace weft::collectives {

class WEFT_EXPORT DeviceMesh {
 public:
  struct Dimension {
    std::string name;
    int size = 1;
  };

  // Call it on all members of the group. Each group of the mesh has the options of `group`, with the
  // dimension's name as its name. At most 16 dimensions. invalid_argument: the product of the sizes differs
  // from the group's size, a name occurs twice, or the members give different meshes.
  static rpc::Future<DeviceMesh> create(const Group& group, std::vector<Dimension> dimensions,
                                        Group::Site site = Group::Site::current());

  // The dimensions that were given to create(). Constant.
  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  // group(): the group of the ranks that differ from this one only in the coordinate of `dimension`.
  // coordinate(): this rank's coordinate, which is its rank in that group. Throw invalid_argument if no
  // dimension has that name.
  const Group& group(const std::string& dimension) const { return groups_[index_of(dimension)]; }
  int coordinate(const std::string& dimension) const { return coordinates_[index_of(dimension)]; }

 private:
  static rpc::Future<DeviceMesh> make(const Group& group, std::vector<Dimension> dimensions,
                                      std::uint64_t rounds, const Group::Site& site);
  std::size_t index_of(const std::string& dimension) const;

  std::vector<Dimension> dimensions_;
  std::vector<int> coordinates_;
  std::vector<Group> groups_;
};

}  // namespace weft::collectives
