#include <weft/parallel/tensor_parallel/internal/agreement.h>

#include <weft/rpc/wire/checksum.h>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <span>
#include <utility>

namespace weft::tensor_parallel {
namespace {

using collectives::Group;

// A module, and the checksum of the state of the generator that it draws from.
using Construction = std::pair<std::string, std::uint32_t>;

void compare(const Group& group, const Construction& own) {
  if (group.size() == 1) return;
  // weights::deferred() may be constructing the module, and does not record the group's tensors.
  const c10::impl::ExcludeDispatchKeyGuard not_deferred(c10::DispatchKey::DeferredInit);
  const auto all = group.all_gather_object(own).get();
  std::string others;  // whose generators are in another state than that of rank 0
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].first != all[0].first)
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "the ranks of '" + group.name() + "' construct different modules: rank 0 " +
                           all[0].first + ", rank " + std::to_string(rank) + " " + all[rank].first +
                           ", expected the same sizes, options and order on all ranks");
    if (all[rank].second != all[0].second) others += (others.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (!others.empty())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     own.first + ": in '" + group.name() +
                         "' the generator of rank 0 is in another state than "
                         "that of rank " +
                         others +
                         ", expected equal initial values on all ranks: call torch::manual_seed() with one "
                         "seed on all ranks before the model is built, or pass generators of one seed, and "
                         "draw the same numbers before");
}

}  // namespace

void expect_agreement(const Group& group, const std::string& own) { compare(group, {own, 0}); }

void expect_agreement(const Group& group, const std::string& own,
                      const std::optional<at::Generator>& generator) {
  at::Generator draws = generator ? *generator : at::detail::getDefaultCPUGenerator();
  at::Tensor state;
  {
    const std::lock_guard lock(draws.mutex());
    state = draws.get_state();
  }
  compare(group, {own, rpc::crc32c({static_cast<const std::byte*>(state.const_data_ptr()), state.nbytes()})});
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
