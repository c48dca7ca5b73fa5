#include <weft/parallel/tensor_parallel/internal/agreement.h>

#include <c10/core/GradMode.h>

namespace weft::tensor_parallel {

void expect_agreement(const collectives::Group& group, const std::string& own) {
  if (group.size() == 1) return;
  const auto all = group.all_gather_object(own).get();
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "the ranks of '" + group.name() + "' construct different modules: rank 0 " + all[0] +
                           ", rank " + std::to_string(rank) + " " + all[rank] +
                           ", expected the same sizes, options and order on all ranks");
}

void refuse(const std::string& operation, const std::string& text) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, operation + ": " + text);
}

void refuse_recorded_backward(const std::string& operation) {
  if (at::GradMode::is_enabled())
    throw rpc::Error(rpc::ErrorKind::unsupported,
                     operation +
                         ": backward with create_graph is not supported: compose the functions of "
                         "conjugates.h, whose backward can be recorded");
}

}  // namespace weft::tensor_parallel
