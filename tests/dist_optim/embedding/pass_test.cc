// The operations of an embedding that a pass permits, and the state that the embedding keeps for passes.
#include <weft/dist_optim/embedding/sharded_embedding.h>

#include "tests/dist_optim/embedding/support.h"

namespace weft::dist_optim::embedding_test {
namespace {

// No backward would collect the gradient of the lookup.
TEST(EmbeddingPass, RefusesLookupsAfterItsBackward) {
  Owners owners(1);
  const ShardedEmbedding embedding(owners.trainer(), zeros(1), owners.peers(1));
  Pass pass{owners.trainer()};
  got(pass.backward(got(embedding.lookup(pass, ids_of({1, 2}))).sum()));
  const auto kind = [](auto&& f) { return test::kind_of([&] { return f(), 0; }); };
  EXPECT_EQ(kind([&] { got(embedding.lookup(pass, ids_of({3}))); }), rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(
      kind([&] { got(embedding.lookup_bags(pass, ids_of({3}), ids_of({0}), ShardedEmbedding::Bag::sum)); }),
      rpc::ErrorKind::failed_precondition);
  got(embedding.step(pass));
  EXPECT_TRUE(
      torch::equal(got(embedding.read(ids_of({1, 2, 3}))), torch::tensor({{-1.0f}, {-1.0f}, {0.0f}})));
}

}  // namespace
}  // namespace weft::dist_optim::embedding_test
