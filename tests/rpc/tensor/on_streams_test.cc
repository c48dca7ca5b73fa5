// Values that pass through futures while streams still compute them, on an accelerator whose streams execute
// only when a thread waits for them.
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/on_streams.h>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "tests/support/cluster.h"
#include "tests/support/fake_accelerator.h"
#include "tests/support/messages.h"

namespace weft::tensor::on_streams_test {

struct Named {
  std::string name;
  at::Tensor value;
  std::vector<at::Tensor> more;
};
WEFT_CODEC(Named, name, value, more)

namespace {

using namespace test;

c10::Device fake(int index) { return FakeAccelerator::device(index); }
// A stream other than the default one. No thread executes it either.
c10::Stream other_stream(int index) {
  return c10::Stream(c10::Stream::UNSAFE, fake(index), FakeAccelerator::pooled + 1);
}

class OnStreamsTest : public ::testing::Test {
 protected:
  // A tensor that the device's current stream fills with 7 asynchronously.
  at::Tensor late(int device = 0) {
    at::Tensor made = at::empty({3}, at::TensorOptions().device(fake(device)));
    accelerator.fill_later(made, 7);
    return made;
  }
  static bool is_seven(const at::Tensor& tensor) { return tensor.cpu().equal(at::full({3}, 7.0F)); }
  // The result of `make` on a thread whose current streams are the default ones, received on a thread with
  // other current streams.
  template <class Make, class Look>
  void pass_on(const Make& make, const Look& look) {
    using Value = decltype(make());
    rpc::Promise<OnStreams<Value>> promise;
    auto future = promise.future();
    std::thread([&] { promise.complete(OnStreams<Value>(make())); }).join();
    const c10::MultiStreamGuard guard(std::vector{other_stream(0), other_stream(1)});
    const Value value = got(std::move(future)).take();
    EXPECT_GE(accelerator.pending(FakeAccelerator::install().current(fake(0))), 1U)
        << "a thread has waited, or nobody will";
    look(value);
  }
  FakeAccelerator& accelerator = FakeAccelerator::install();
};

TEST_F(OnStreamsTest, ATensorIsCompleteOnTheReceiversStream) {
  pass_on([&] { return late(); }, [](const at::Tensor& value) { EXPECT_TRUE(is_seven(value)); });
}

TEST_F(OnStreamsTest, WithoutOnStreamsATensorIsIncomplete) {  // shows that the other tests can fail
  const at::Tensor value = late(2);
  const c10::StreamGuard guard(other_stream(2));
  EXPECT_FALSE(is_seven(value));
}

TEST_F(OnStreamsTest, ListsMapsAndOptionals) {
  pass_on(
      [&] {
        return std::tuple(std::vector{late(), late(1)}, std::map<std::string, at::Tensor>{{"a", late()}},
                          std::optional(late(1)), std::optional<at::Tensor>(), at::Tensor(),
                          at::ones({3}) * 7);
      },
      [](const auto& value) {
        EXPECT_TRUE(is_seven(std::get<0>(value)[0]));
        EXPECT_TRUE(is_seven(std::get<0>(value)[1]));
        EXPECT_TRUE(is_seven(std::get<1>(value).at("a")));
        EXPECT_TRUE(is_seven(*std::get<2>(value)));
        EXPECT_TRUE(is_seven(std::get<5>(value)));
      });
}

TEST_F(OnStreamsTest, Structs) {
  pass_on([&] { return std::vector{Named{"one", late(), {late(), late(1)}}}; },
          [](const std::vector<Named>& value) {
            EXPECT_TRUE(is_seven(value[0].value));
            EXPECT_TRUE(is_seven(value[0].more[0]));
            EXPECT_TRUE(is_seven(value[0].more[1]));
          });
}

TEST_F(OnStreamsTest, SparseTensors) {
  const at::Tensor indices = at::arange(3).unsqueeze(0).to(fake(0));
  pass_on([&] { return std::vector{at::_sparse_coo_tensor_unsafe(indices, late(), {5})}; },
          [](const std::vector<at::Tensor>& value) { EXPECT_TRUE(is_seven(value[0]._values())); });
}

// A continuation receives the value on the thread that completes the future, and moves it to another device.
TEST_F(OnStreamsTest, AContinuationMovesItToAnotherDevice) {
  rpc::Promise<OnStreams<at::Tensor>> promise;
  auto future = promise.future().then([](rpc::Result<OnStreams<at::Tensor>>&& made) {
    const c10::MultiStreamGuard guard(std::vector{other_stream(0), other_stream(1)});
    return OnStreams<at::Tensor>(std::move(made).get().take().to(fake(1)));
  });
  std::thread([&] { promise.complete(OnStreams<at::Tensor>(late())); }).join();
  const at::Tensor value = got(std::move(future)).take();
  EXPECT_EQ(value.device(), fake(1));
  EXPECT_TRUE(is_seven(value));
}

// --- Handlers whose results are completed by another thread ---

struct Elsewhere {
  // A separate thread completes the result before its streams have executed the work.
  rpc::Future<OnStreams<at::Tensor>> add_one(at::Tensor x) {
    rpc::Promise<OnStreams<at::Tensor>> promise;
    auto future = promise.future();
    std::thread([promise = std::move(promise), x = x.cpu()]() mutable {
      FakeAccelerator& accelerator = FakeAccelerator::install();
      const c10::StreamGuard guard(other_stream(1));
      at::Tensor made = at::empty(x.sizes(), at::TensorOptions().device(fake(1)));
      accelerator.launch(fake(1), [] {});
      accelerator.fill_later(made, x[0].item<float>() + 1);
      promise.complete(OnStreams(std::move(made)));
    }).join();
    return future;
  }
  // Continues with the result of a nested call.
  rpc::Task<at::Tensor> add_two(rpc::CallContext& call, at::Tensor x) {
    co_return co_await next->with(call).call<&Elsewhere::add_one>(x) + 1;
  }
  std::optional<rpc::Peer> next;
  using Service = rpc::Service<"elsewhere", rpc::Method<"add_one", &Elsewhere::add_one>,
                               rpc::Method<"add_two", &Elsewhere::add_two>>;
};

class CompletedElsewhere : public OnStreamsTest {
 protected:
  CompletedElsewhere() {
    for (const char* name : {"here", "there", "yonder"}) {
      DeviceOptions options;
      options.others = {{"fake:0", "fake:0"}, {"fake:1", "fake:1"}};
      cluster.add(name, layers(options));
      served[name] = std::make_shared<Elsewhere>();
      cluster[name].serve(served[name]);
    }
    served["there"]->next = cluster.peer("there", "yonder");
  }
  test::Cluster cluster{{}};
  std::map<std::string, std::shared_ptr<Elsewhere>> served;
  const at::Tensor x = (at::ones({3}) * 5).to(fake(1));
};

TEST_F(CompletedElsewhere, AResultIsSentAfterItsStreamsWork) {
  const at::Tensor result = got(cluster.peer("here", "there").call<&Elsewhere::add_one>(x));
  EXPECT_EQ(result.device(), fake(1));
  EXPECT_TRUE(result.cpu().equal(at::full({3}, 6.0F)));
}

TEST_F(CompletedElsewhere, AContinuedResultIsSentAfterItsStreamsWork) {
  const at::Tensor result = got(cluster.peer("here", "there").call<&Elsewhere::add_two>(x));
  EXPECT_EQ(result.device(), fake(1));
  EXPECT_TRUE(is_seven(result));
}

}  // namespace
}  // namespace weft::tensor::on_streams_test
