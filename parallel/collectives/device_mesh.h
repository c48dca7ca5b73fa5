// DeviceMesh: the ranks of a group as a grid with named dimensions, and a group along each.
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

  // Of all members of the group at once; its groups have that one's options. invalid_argument where the
  // sizes' product is not the group's size, a name is there twice, or the members mean different meshes.
  static rpc::Future<DeviceMesh> create(const Group& group, std::vector<Dimension> dimensions,
                                        Group::Site site = Group::Site::current());

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  // Of a dimension; invalid_argument where there is none of that name.
  const Group& group(const std::string& dimension) const { return groups_[index_of(dimension)]; }
  int coordinate(const std::string& dimension) const {
    return coordinates_[index_of(dimension)];
  }  // this rank's

 private:
  static rpc::Future<DeviceMesh> make(const Group& group, std::vector<Dimension> dimensions,
                                      std::uint64_t rounds, const Group::Site& site);
  std::size_t index_of(const std::string& dimension) const;

  std::vector<Dimension> dimensions_;
  std::vector<int> coordinates_;
  std::vector<Group> groups_;
};

}  // namespace weft::collectives
