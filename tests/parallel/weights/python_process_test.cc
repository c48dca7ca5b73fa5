// Files of weft are those of PyTorch and of Python's safetensors, in both directions and bit by bit, if there
// is a Python that has both.
#include <weft/parallel/weights/module.h>

#include <weft/parallel/weights/internal/dtypes.h>

#include <ATen/ops/arange.h>

#include "tests/parallel/weights/files.h"

namespace weft::weights::python_process_test {
namespace {

using namespace test_files;

class Python : public Files {};

TEST_F(Python, ReadsAndWritesTheSameFiles) {
  std::map<std::string, at::Tensor> of_torch{{"scalar", known(at::kFloat, {})},
                                             {"empty", known(at::kLong, {0, 3})}};
  for (const at::ScalarType type : every_type) of_torch[name_of(type)] = known(type, {2, 3});
  std::map<std::string, at::Tensor> of_safetensors = of_torch;
  of_safetensors.erase("complex128");
  of_safetensors.erase("complex32");
  const at::Tensor whole = known(at::kFloat, {4, 6});
  of_torch.insert(
      {{"whole", whole}, {"tied", whole}, {"rows", whole.narrow(0, 1, 2)}, {"transposed", whole.t()}});
  const auto write = [&](const std::string& name, const auto& tensors) {
    const auto sink = create_sink(path(name));
    sink->declare(forms_of(tensors));
    for (const auto& [each, tensor] : tensors) sink->write(each, tensor);
    sink->finish();
  };
  write("weft.pt", of_torch);
  write("weft.safetensors", of_safetensors);
  write("weft", of_safetensors);
  const std::string source_dir =
      recorded("").parent_path().parent_path().parent_path().parent_path().parent_path().string();
  const std::string reason =
      weft::test::run_torch_python(source_dir, "tests/parallel/weights/python_peer.py", {path("").string()});
  if (!reason.empty()) GTEST_SKIP() << reason;

  for (const auto& [name, tensors] :
       {std::pair{"python.pt", &of_torch}, {"python.safetensors", &of_safetensors}}) {
    const auto source = open_source(path(name));
    EXPECT_EQ(source->tensors().size(), tensors->size());
    for (const auto& [each, tensor] : *tensors)
      expect_same(source->view(each), tensor, std::string(name) + " " + each);
  }
  const auto checkpoint = open_source(path("dcp")), joined = open_source(path("dcp.pt"));
  EXPECT_EQ(checkpoint->tensors().size(), joined->tensors().size());
  EXPECT_GT(checkpoint->tensors().size(), 2 * std::size(every_type));
  for (const auto& [each, form] : joined->tensors())
    expect_same(checkpoint->view(each), joined->view(each), "dcp " + each);
  EXPECT_EQ(checkpoint->notes(), joined->notes());
}

}  // namespace
}  // namespace weft::weights::python_process_test
