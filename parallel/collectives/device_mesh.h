// DeviceMesh: the ranks of a group as a grid with named dimensions, and a group along each dimension.
//
//   const std::vector<DeviceMesh::Dimension> grid{{"data", 2}, {"tensor", 4}};
//   auto mesh = co_await DeviceMesh::create(world, grid);
//   co_await mesh.group("data").all_reduce(gradient);
//
// Ranks are counted along the last dimension first, as rows of a matrix. A value: copies are the same groups.
// Thread-safety: as a Group's.
#pragma once

#include <weft/parallel/collectives/group.h>

namespace weft::collectives {

class WEFT_EXPORT DeviceMesh {
 public:
  struct Dimension {
    std::string name;
    int size = 1;
  };

  // Call it on all members of the group. The mesh's groups have the options of that group, and the names of
  // their dimensions. At most 16 dimensions. invalid_argument if the product of the sizes is not the group's
  // size, if a name occurs twice, or if the members give different meshes.
  static rpc::Future<DeviceMesh> create(const Group& group, std::vector<Dimension> dimensions,
                                        Group::Site site = Group::Site::current());

  // As given to create(). Constant.
  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  // By dimension: the group of the ranks that differ from this one only in that coordinate, and this rank's
  // coordinate, which is its rank in that group. Throws invalid_argument if no dimension has that name.
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
