// Tensors that are made of those of a file.
#include <weft/parallel/weights/module.h>
#include <weft/parallel/weights/rearranged.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/errors.h"
#include "tests/support/torch_python.h"

namespace weft::weights::rearranged_test {
namespace {

using test::message_of;

class Rearranged : public ::testing::TestWithParam<const char*> {
 protected:
  static at::Tensor numbered(at::IntArrayRef sizes, int first) {
    return (at::arange(at::empty(sizes).numel(), at::kFloat) + first).view(sizes);
  }
  void SetUp() override {
    std::filesystem::create_directories(path_.parent_path());
    const auto sink = create_sink(path_);
    sink->declare(forms_of(tensors_));
    for (const auto& [name, tensor] : tensors_) sink->write(name, tensor);
    sink->finish();
    source_ = open_source(path_);
  }

  const test::TemporaryFolder folder_;
  const std::filesystem::path path_ = std::filesystem::path(folder_.path()) / GetParam();
  const std::map<std::string, at::Tensor> tensors_ = {{"a", numbered({4, 6}, 0)},
                                                      {"b", numbered({2, 6}, 100)},
                                                      {"cube", numbered({2, 3, 4}, 200)},
                                                      {"other", numbered({3}, 300)},
                                                      {"narrow", numbered({4, 6}, 0).to(at::kDouble)}};
  std::shared_ptr<Source> source_;
};
INSTANTIATE_TEST_SUITE_P(Files, Rearranged, ::testing::Values("f.safetensors", "f.pt"), [](const auto& info) {
  return std::string(info.index == 0 ? "safetensors" : "torch");
});

TEST_P(Rearranged, EverySliceHasItsElements) {
  const at::Tensor &a = tensors_.at("a"), &b = tensors_.at("b"), &cube = tensors_.at("cube");
  const std::map<std::string, std::pair<Arrangement, at::Tensor>> cases = {
      {"rows", {{.parts = {{"a", Slice::rows(1, 3)}}}, a.slice(0, 1, 3)}},
      {"joined", {{.parts = {{"a"}, {"b"}, {"a", Slice::rows(2, 4)}}}, at::cat({a, b, a.slice(0, 2, 4)})}},
      {"columns",
       {{.parts = {{"a", Slice{{{1, 4, 6}}}}, {"a", Slice{{{1, 0, 1}}}}}, .dim = 1},
        at::cat({a.slice(1, 4, 6), a.slice(1, 0, 1)}, 1)}},
      {"transposed", {{.parts = {{"a", Slice{{{1, 1, 5}}}}}, .transposed = true}, a.slice(1, 1, 5).t()}},
      {"all",
       {{.parts = {{"a", Slice{{{0, 1, 3}}}}, {"b"}}, .dim = 1, .transposed = true},
        at::cat({a.slice(0, 1, 3).t(), b.t()}, 1)}},
      {"cube",
       {{.parts = {{"cube", Slice{{{2, 1, 3}}}}}, .transposed = true}, cube.slice(2, 1, 3).transpose(0, 1)}}};
  for (const auto& [name, each] : cases) {
    SCOPED_TRACE(name);
    const auto& [arrangement, values] = each;
    const auto made = rearranged(source_, {{"new", arrangement}});
    ASSERT_EQ(made->form("new").sizes, values.sizes().vec());
    EXPECT_TRUE(at::equal(made->view("new"), values));
    EXPECT_FALSE(made->tensors().contains(arrangement.parts[0].name));
    EXPECT_TRUE(at::equal(made->view("other"), tensors_.at("other")));
    const std::int64_t elements = values.numel();
    for (std::int64_t begin = 0; begin <= elements; ++begin)
      for (std::int64_t end = begin; end <= elements; ++end) {
        const at::Tensor to = at::full({end - begin}, -1.0F);
        made->read("new", to, Slice::flat(begin, end));
        ASSERT_TRUE(at::equal(to, values.reshape({-1}).slice(0, begin, end))) << begin << " " << end;
      }
    for (std::int64_t begin = 0; begin < values.size(1); ++begin) {
      const at::Tensor to = at::full_like(values.slice(1, begin), -1.0).to(at::kDouble);
      made->read("new", to, Slice{{{1, begin, values.size(1)}}}, /*convert=*/true);
      EXPECT_TRUE(at::equal(to, values.slice(1, begin).to(at::kDouble))) << begin;
    }
  }
}

TEST_P(Rearranged, LoadsAFusedLayer) {
  torch::nn::Linear linear(torch::nn::LinearOptions(6, 6).bias(false));
  const auto made = rearranged(source_, {{"weight", {.parts = {{"a"}, {"b"}}}}});
  load_into(*linear, *made, {.strict = false});
  EXPECT_TRUE(at::equal(linear->weight, at::cat({tensors_.at("a"), tensors_.at("b")})));
}

TEST_P(Rearranged, WhatDoesNotFitIsNamed) {
  const auto refused = [&](Arrangement arrangement, const std::string& name = "new") {
    return message_of([&] { rearranged(source_, {{name, std::move(arrangement)}}); });
  };
  const auto expect = [&](Arrangement arrangement, const std::string& text) {
    const std::string message = refused(std::move(arrangement));
    EXPECT_NE(message.find(text), std::string::npos) << message;
    EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
  };
  expect({}, "'new': an arrangement without parts");
  expect({.parts = {{"missing"}}}, "missing");
  expect({.parts = {{"a"}, {"cube"}}}, "'cube' is float32 [2, 3, 4], which does not fit float32 [4, 6]");
  expect({.parts = {{"a"}, {"b"}}, .dim = 1}, "'b' is float32 [2, 6]");
  expect({.parts = {{"a"}, {"narrow"}}}, "'narrow' is float64 [4, 6]");
  expect({.parts = {{"a"}}, .dim = 2}, "has no dimension 2");
  expect({.parts = {{"a"}}, .dim = -1}, "has no dimension -1");
  expect({.parts = {{"other"}}, .transposed = true}, "cannot be transposed");
  expect({.parts = {{"a", Slice::rows(2, 5)}}}, "indices 2 to 5");
  expect({.parts = {{"a", Slice::flat(0, 2)}}}, "flattened");
  EXPECT_NE(refused({.parts = {{"a"}}}, "b").find("'b': the file has another tensor of this name"),
            std::string::npos);
}

}  // namespace
}  // namespace weft::weights::rearranged_test
