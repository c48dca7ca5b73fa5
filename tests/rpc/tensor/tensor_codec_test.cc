// Tensors of every kind through a real call, both ways, over TCP and in process.
#include <weft/rpc/codec/packed.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <torch/torch.h>

#include "tests/support/cluster.h"

namespace weft::tensor::tensor_codec_test {
namespace {

using rpc::ErrorKind;
using namespace test;

at::Tensor echo(at::Tensor x) { return x; }
std::vector<at::Tensor> echo_all(std::vector<at::Tensor> x) { return x; }
std::string describe(at::Tensor x) {
  std::ostringstream text;
  text << x.scalar_type() << " " << x.sizes() << " " << x.strides() << " " << x.requires_grad();
  return text.str();
}
using Echo = rpc::Function<"echo", &echo>;
Leaf echo_leaf(Leaf x) { return x; }
using EchoLeaf = rpc::Function<"echo_leaf", &echo_leaf>;
using EchoAll = rpc::Function<"echo_all", &echo_all>;
using Describe = rpc::Function<"describe", &describe>;

// Holds a tensor and returns it, as a parameter server does.
struct Holder {
  at::Tensor held = at::zeros({1000});
  at::Tensor get() { return held; }
  void add_one() { held.add_(1); }
  using Service =
      rpc::Service<"holder", rpc::Method<"get", &Holder::get>, rpc::Method<"add_one", &Holder::add_one>>;
};

class TensorCodecTest : public testing::TestWithParam<bool> {
 protected:
  TensorCodecTest() : cluster_({.layers = layers(), .tcp = GetParam()}, {"here", "there"}) {
    cluster_["there"].serve<Echo>();
    cluster_["there"].serve<EchoAll>();
    cluster_["there"].serve<EchoLeaf>();
    cluster_["there"].serve<Describe>();
    cluster_["there"].serve(holder_);
    peer_.emplace(cluster_.peer("here", "there"));
  }
  at::Tensor echoed(const at::Tensor& x) { return got(peer_->call<Echo>(x)); }
  void expect_same(const at::Tensor& x) {
    const at::Tensor y = echoed(x);
    ASSERT_EQ(y.defined(), x.defined());
    ASSERT_EQ(y.scalar_type(), x.scalar_type());
    ASSERT_EQ(y.layout(), x.layout());
    ASSERT_EQ(y.sizes(), x.sizes());
    if (x.numel() == 0) return;
    const at::Tensor a = x.to_dense().resolve_conj().resolve_neg().contiguous();
    const at::Tensor b = y.to_dense().contiguous();
    EXPECT_EQ(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()), 0) << describe(x);
  }

  std::shared_ptr<Holder> holder_ = std::make_shared<Holder>();
  test::Cluster cluster_;
  std::optional<rpc::Peer> peer_;
};

INSTANTIATE_TEST_SUITE_P(Ways, TensorCodecTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "InProcess"; });

TEST_P(TensorCodecTest, EveryTypeAndSize) {
  for (const auto type :
       {at::kBool,          at::kByte,        at::kChar,          at::kShort,           at::kInt,
        at::kLong,          at::kUInt16,      at::kUInt32,        at::kUInt64,          at::kHalf,
        at::kBFloat16,      at::kFloat,       at::kDouble,        at::kComplexHalf,     at::kComplexFloat,
        at::kComplexDouble, at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kFloat8_e5m2fnuz, at::kFloat8_e4m3fnuz})
    for (const std::int64_t n : {0, 1, 3, 5000}) expect_same(at::randint(0, 2, {n}).to(type));
}

TEST_P(TensorCodecTest, EveryShape) {
  EXPECT_FALSE(echoed({}).defined());
  expect_same(at::tensor(3.5));
  expect_same(at::empty({0, 3}));
  expect_same(at::empty({3, 0, 2}));
  expect_same(at::rand({2, 3, 4, 5}));
  const at::Tensor matrix = at::rand({50, 40});
  expect_same(matrix.t());
  expect_same(matrix.select(1, 7));
  expect_same(matrix.slice(0, 10, 40, 3));
  expect_same(matrix.flip(0));
  expect_same(at::rand({2, 8, 8, 3}).permute({0, 3, 1, 2}));
  expect_same(at::rand({64}, at::kComplexFloat).conj());
  expect_same(at::imag(at::rand({64}, at::kComplexFloat).conj()));
}

// Values and the order of strides are kept, also at the callee. Gaps in memory are not.
TEST_P(TensorCodecTest, KeepsTheOrderOfStrides) {
  const at::Tensor image = at::rand({2, 3, 4, 5}), matrix = at::rand({50, 40}),
                   small = at::arange(6).view({2, 3});
  for (const at::Tensor& x :
       {matrix.t(), small.t(), image.permute({3, 1, 0, 2}), image.contiguous(at::MemoryFormat::ChannelsLast),
        at::rand({2, 3, 4, 5, 6}).contiguous(at::MemoryFormat::ChannelsLast3d), image.transpose(0, 3),
        at::rand({30, 20}, at::kComplexFloat).t().conj(), matrix.t().slice(0, 0, 40)}) {
    expect_same(x);
    EXPECT_EQ(echoed(x).strides(), x.strides()) << describe(x);
    EXPECT_EQ(got(peer_->call<Describe>(x)), describe(x));
  }
  EXPECT_TRUE(
      echoed(image.contiguous(at::MemoryFormat::ChannelsLast)).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_P(TensorCodecTest, KeepsTheOrderOfStridesNextToAnExpandedDimension) {
  const at::Tensor x = at::rand({20, 30}).t().unsqueeze(1).expand({30, 7, 20});
  expect_same(x);
  const at::Tensor y = echoed(x);
  EXPECT_EQ(y.strides(), x.strides());
  EXPECT_EQ(y.storage().nbytes(), 600 * sizeof(float)) << "it travels once";
}

// A view that is created under no-grad must not be changed in place by an operation that requires grad.
TEST_P(TensorCodecTest, ReceivedTensorsAreNoViews) {
  const at::Tensor image = at::rand({2, 3, 20, 30}), matrix = at::rand({50, 40}), small = at::rand({2, 3});
  const auto factor = at::ones({}).requires_grad_();
  for (const at::Tensor& x : {image, image.contiguous(at::MemoryFormat::ChannelsLast), image.transpose(0, 3),
                              matrix.t(), small.t(), matrix.slice(0, 0, 40, 2)}) {
    at::Tensor y = echoed(x);
    EXPECT_FALSE(y.is_view()) << describe(x);
    EXPECT_TRUE(y.mul_(factor).requires_grad()) << describe(x);
  }
  EXPECT_FALSE(echoed(matrix.unsqueeze(1).expand({50, 3, 40})).is_view());
}

TEST_P(TensorCodecTest, AViewWithGapsOrOverlapsArrivesContiguous) {
  const at::Tensor matrix = at::rand({50, 40});
  for (const at::Tensor& x : {matrix.slice(0, 0, 30, 2).t(), matrix.select(1, 7),
                              matrix.as_strided({4, 3}, {1, 2}), matrix.slice(1, 0, 20)}) {
    expect_same(x);
    EXPECT_TRUE(echoed(x).is_contiguous()) << describe(x);
  }
}

// A received order must have all dimensions, each once.
TEST(TensorOrder, MalformedIsRefused) {
  const auto decoded = [](const std::vector<std::int64_t>& order) {
    const auto message = rpc::OutgoingMessage::reply();
    rpc::RecordWriter record = message->result().set_record(4);
    record.field(0, "dtype").set_text("uint8");
    record.field(1, "shape").set_ints(std::vector<std::int64_t>{2, 3});
    const std::array<std::byte, 6> bytes{std::byte{0}, std::byte{1}, std::byte{2},
                                         std::byte{3}, std::byte{4}, std::byte{5}};
    record.field(2, "data").set_bytes(bytes);
    record.field(3, "order").set_ints(order);
    const auto arrived = rpc::detail::unpacked(rpc::detail::packed(message->seal_reply(0)));
    return rpc::Codec<at::Tensor>::decode(arrived->result()).clone();
  };
  EXPECT_EQ(decoded({1, 0}).strides(), at::IntArrayRef({1, 2}));
  EXPECT_TRUE(decoded({1, 0}).equal(at::arange(6, at::kByte).view({2, 3})));
  EXPECT_TRUE(decoded({0, 1}).is_contiguous());
  using Order = std::vector<std::int64_t>;
  for (const Order& order : {Order{}, Order{0}, Order{0, 0}, Order{1, 2}, Order{-1, 0}, Order{0, 1, 0},
                             Order{std::numeric_limits<std::int64_t>::min(), 0}})
    EXPECT_EQ(kind_of([&] { return decoded(order); }), ErrorKind::invalid_argument) << at::IntArrayRef(order);
}

TEST_P(TensorCodecTest, AViewSendsItsElementsAlone) {
  const at::Tensor huge = at::rand({1000, 1000});
  const at::Tensor got = echoed(huge.slice(0, 3, 5));
  EXPECT_EQ(got.storage().nbytes(), 2 * 1000 * sizeof(float));
}

TEST_P(TensorCodecTest, AnExpandedDimensionIsSentOnce) {
  const at::Tensor row = at::rand({1, 1000});
  const at::Tensor wide = row.expand({1'000'000, 1000});  // would occupy 4 GB
  const at::Tensor got = echoed(wide);
  EXPECT_EQ(got.sizes(), wide.sizes());
  EXPECT_EQ(got.stride(0), 0);
  EXPECT_TRUE(got[999'999].equal(row[0]));
}

TEST_P(TensorCodecTest, Sparse) {
  const at::Tensor dense = at::rand({30, 20}).mul_(at::rand({30, 20}) > 0.8);
  expect_same(dense.to_sparse());
  expect_same(dense.to_sparse_csr());
  expect_same(at::sparse_coo_tensor({5, 5}, at::kFloat));
  // Not coalesced: the same place twice.
  const at::Tensor twice =
      at::sparse_coo_tensor(at::tensor({1, 1, 2, 2}, at::kLong).view({2, 2}), at::tensor({1.0, 2.0}), {4, 4});
  EXPECT_EQ(echoed(twice).to_dense()[1][2].item<double>(), 3.0);
  EXPECT_FALSE(echoed(twice).is_coalesced());
  for (const at::Tensor& coalesced : {dense.to_sparse(), dense.to_sparse(1), twice.coalesce()}) {
    const at::Tensor same = echoed(coalesced);
    ASSERT_TRUE(same.is_coalesced());
    EXPECT_TRUE(same.indices().equal(coalesced.indices()) && same.values().equal(coalesced.values()));
  }
  // A peer that claims too much.
  EXPECT_EQ(kind_of([&] { return echoed(twice.clone()._coalesced_(true)); }), ErrorKind::invalid_argument);
  const at::Tensor descending =
      at::sparse_coo_tensor(at::tensor({2, 1}, at::kLong).view({1, 2}), at::tensor({1.0, 2.0}), {4});
  EXPECT_EQ(kind_of([&] { return echoed(descending._coalesced_(true)); }), ErrorKind::invalid_argument);
}

TEST_P(TensorCodecTest, SeveralInOneMessage) {
  std::vector<at::Tensor> all{at::rand({10}), {}, at::rand({100, 100}), at::arange(3), at::empty({0})};
  const auto back = got(peer_->call<EchoAll>(all));
  ASSERT_EQ(back.size(), all.size());
  EXPECT_FALSE(back[1].defined());
  for (const std::size_t i : {0, 2, 3, 4}) EXPECT_TRUE(back[i].equal(all[i]));
}

TEST_P(TensorCodecTest, UnsupportedTensorsAreErrorsThatStateTheReason) {
  const auto unsupported = [&](const at::Tensor& x, const std::string& part) {
    test::expect_error([&] { return echoed(x); }, ErrorKind::unsupported, part);
  };
  unsupported(at::quantize_per_tensor(at::rand({4}), 0.1, 0, at::kQInt8), "quantized");
  unsupported(at::empty({4}, at::TensorOptions().device(at::kMeta)), "meta");
  unsupported(at::rand({4, 4}).to_sparse_csc(), "layout");
}

TEST_P(TensorCodecTest, WithoutAPassLeavesAreDetachedAndNonLeavesRefused) {
  const at::Tensor leaf = at::rand({3}).set_requires_grad(true);
  EXPECT_FALSE(echoed(leaf).requires_grad());
  expect_error([&] { return echoed(leaf * 2); }, ErrorKind::failed_precondition,
               "give the call a pass, or detach()");
  EXPECT_TRUE(echoed((leaf * 2).detach()).equal((leaf * 2).detach()));
}

TEST_P(TensorCodecTest, ALeafKeepsWhetherItRequiresGrad) {
  const at::Tensor leaf = at::rand({3}).set_requires_grad(true);
  for (const at::Tensor& x : {leaf, leaf * 2, at::rand({3}), at::tensor(3)}) {
    const at::Tensor y = got(peer_->call<EchoLeaf>(Leaf(x))).tensor();
    EXPECT_EQ(y.requires_grad(), x.requires_grad());
    EXPECT_TRUE(y.is_leaf() && y.equal(x));
    EXPECT_EQ(got(peer_->call<Describe>(Leaf(x))), describe(x)) << "as an at::Tensor";
  }
}

TEST_P(TensorCodecTest, ALeafKeepsTheStridesOfAView) {
  const at::Tensor small = at::rand({5, 5}), large = at::rand({200, 200});
  const auto strides = [&](const at::Tensor& x) {
    const at::Tensor y = got(peer_->call<EchoLeaf>(Leaf(x))).tensor();
    EXPECT_TRUE(y.equal(x));
    return y.strides().vec();
  };
  using Strides = std::vector<std::int64_t>;
  EXPECT_EQ(strides(small.narrow(1, 2, 2)), (Strides{5, 1}));
  EXPECT_EQ(strides(small.narrow(1, 2, 2).t()), (Strides{1, 5}));
  EXPECT_EQ(strides(small.narrow(1, 2, 2).unsqueeze(1).expand({5, 3, 2})), (Strides{5, 0, 1}));
  EXPECT_EQ(strides(large.narrow(1, 0, 150)), (Strides{200, 1}));
  EXPECT_EQ(strides(large.narrow(1, 0, 10)), (Strides{10, 1})) << "most of the memory is not its own";
  const at::Tensor grown = got(peer_->call<EchoLeaf>(Leaf(small.narrow(1, 2, 2).requires_grad_()))).tensor();
  EXPECT_TRUE(grown.requires_grad() && grown.is_leaf());
  EXPECT_EQ(grown.strides(), (Strides{5, 1}));
}

TEST(TensorLeaf, WithMalformedStridesIsRefused) {
  const auto decoded = [](const std::vector<std::int64_t>& strides) {
    const auto message = rpc::OutgoingMessage::reply();
    rpc::RecordWriter record = message->result().set_record(4);
    record.field(0, "dtype").set_text("uint8");
    record.field(1, "shape").set_ints(std::vector<std::int64_t>{2, 3});
    record.field(2, "data").set_bytes(std::vector<std::byte>(8));
    record.field(3, "strides").set_ints(strides);
    const auto arrived = rpc::detail::unpacked(rpc::detail::packed(message->seal_reply(0)));
    return rpc::Codec<at::Tensor>::decode(arrived->result());
  };
  EXPECT_EQ(decoded({5, 1}).strides(), (std::vector<std::int64_t>{5, 1}));
  using Strides = std::vector<std::int64_t>;
  for (const Strides& strides :
       {Strides{6, 1}, Strides{-1, 1}, Strides{1}, Strides{INT64_MAX, 1}, Strides{1, INT64_MAX}})
    test::expect_error([&] { return decoded(strides); }, ErrorKind::invalid_argument, "a tensor ");
}

TEST(TensorLeaf, OfATypeWithoutGradientsIsRefused) {
  const auto message = rpc::OutgoingMessage::reply();
  rpc::RecordWriter record = message->result().set_record(4);
  record.field(0, "dtype").set_text("uint8");
  record.field(1, "shape").set_ints(std::vector<std::int64_t>{0});
  record.field(2, "data").set_bytes({});
  record.field(3, "requires_grad").set_bool(true);
  const auto arrived = rpc::detail::unpacked(rpc::detail::packed(message->seal_reply(0)));
  test::expect_error([&] { return rpc::Codec<at::Tensor>::decode(arrived->result()); },
                     ErrorKind::invalid_argument, "requires grad");
}

TEST_P(TensorCodecTest, ReceivedTensorsShareNoMemoryWithSentOnes) {
  at::Tensor mine = at::zeros({1000});
  const at::Tensor theirs = echoed(mine);
  mine.fill_(1);
  EXPECT_EQ(theirs.sum().item<float>(), 0);
  // A result that its owner keeps is a snapshot.
  const at::Tensor before = got(peer_->call<&Holder::get>());
  got(peer_->call<&Holder::add_one>());
  EXPECT_EQ(before.sum().item<float>(), 0);
  EXPECT_EQ(got(peer_->call<&Holder::get>()).sum().item<float>(), 1000);
}

// A result to which nothing else refers cannot change any more: it is sent without a copy.
TEST(TensorReply, IsCopiedOnlyWhereOthersHoldItsMemory) {
  const auto travels_as_it_lies = [](const at::Tensor& tensor) {
    const auto message = rpc::OutgoingMessage::reply();
    rpc::Codec<at::Tensor>::encode(message->result(), tensor);
    return message->seal_reply(1).attachments.at(0).data() == tensor.const_data_ptr();
  };
  const at::Tensor mine = at::zeros({1000});
  EXPECT_TRUE(travels_as_it_lies(mine));
  {
    const at::Tensor same = mine;
    EXPECT_FALSE(travels_as_it_lies(mine));
  }
  {
    const at::Tensor same_memory = mine.view({10, 100});
    EXPECT_FALSE(travels_as_it_lies(mine));
    EXPECT_FALSE(travels_as_it_lies(same_memory));
  }
  EXPECT_TRUE(travels_as_it_lies(mine));
}

TEST_P(TensorCodecTest, AnArgumentThatChangesBeforeItIsSentFailsItsCall) {
  at::Tensor x = at::zeros({1 << 16});
  rpc::Future<at::Tensor> borrowed, copied;
  {
    test::HeldLoop held(cluster_["here"]);
    borrowed = peer_->call<Echo>(x);
    copied = peer_->call<Echo>(Snapshot(x));
    x.add_(1);
  }
  EXPECT_EQ(kind_of([&] { return got(std::move(borrowed)); }), ErrorKind::argument_modified);
  EXPECT_EQ(got(std::move(copied)).sum().item<float>(), 0);
}

}  // namespace
}  // namespace weft::tensor::tensor_codec_test
