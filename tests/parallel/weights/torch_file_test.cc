// Files of torch.save(): all layouts and values are read, and every other pickle or zip file is refused.
#include <weft/parallel/weights/source.h>

#include <weft/parallel/weights/internal/dtypes.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cstring>
#include <limits>

#include "tests/parallel/weights/dcp_folder.h"
#include "tests/parallel/weights/files.h"

namespace weft::weights::torch_file_test {
namespace {

using namespace test_files;
using namespace std::string_literals;

class TorchFiles : public Files {
 protected:
  void expect_pickle_refused(const std::string& pickle, const std::string& what,
                             rpc::ErrorKind kind = rpc::ErrorKind::failed_precondition) const {
    expect_refused(put("file.pt", torch_zip({{"a/data.pkl", pickle}, {"a/data/0", std::string(16, 'x')}})),
                   what, kind);
  }
  static std::string integer(std::int64_t number) {
    return "\x8a\x08" + std::string(reinterpret_cast<const char*>(&number), sizeof number);
  }
};

TEST_F(TorchFiles, HaveEveryTypeOfLibTorch) {
  const auto source = open_source(recorded("types.pt"));
  for (const at::ScalarType type : every_type) {
    expect_same(source->view(name_of(type)), known(type, {2, 3}), name_of(type));
    const at::Tensor to = at::empty({2, 3}, at::TensorOptions(type));
    source->read(name_of(type), to);
    expect_same(to, known(type, {2, 3}), name_of(type));
  }
  expect_same(source->view("scalar"), known(at::kFloat, {}), "0-dim");
  expect_same(source->view("empty"), known(at::kLong, {0, 3}), "empty");
  EXPECT_EQ(source->tensors().size(), std::size(every_type) + 2);
  expect_same(open_source(recorded("one.pt"))->view("tensor"), known(at::kFloat, {2}),
              "a file that is one tensor");
}

TEST_F(TorchFiles, HaveNestedValuesAndSharedStorages) {
  for (const char* name : {"values.pt", "values_protocol_5.pt"}) {
    const auto source = open_source(recorded(name));
    const at::Tensor whole = known(at::kFloat, {4, 6});
    expect_same(source->view("model.weight"), at::arange(6, at::kFloat).view({3, 2}), name);
    expect_same(source->view("model.bias"), at::arange(3, at::kFloat), name);
    expect_same(source->view("parameter"), at::arange(6, at::kFloat).view({3, 2}), name);
    expect_same(source->view("rows"), whole.narrow(0, 1, 2), name);
    expect_same(source->view("columns"), whole.narrow(1, 2, 2), name);
    expect_same(source->view("transposed"), whole.t(), name);
    EXPECT_EQ(source->view("transposed").strides(), whole.t().strides());
    expect_same(source->view("expanded"), at::full({3}, 5.F), name);
    expect_same(source->view("whole"), whole, name);
    expect_same(source->view("list.0"), known(at::kInt, {2}), name);
    expect_same(source->view("list.1.0"), known(at::kShort, {1}), name);
    expect_same(source->view("list.1.1.7"), known(at::kChar, {2}), name);
    const c10::complex<float> conjugates[] = {{1, -2}, {3, 4}};
    EXPECT_EQ(bytes_of(source->view("conjugate").resolve_conj()),
              std::string(reinterpret_cast<const char*>(conjugates), 16));
    expect_same(source->view("negative").resolve_neg(), at::tensor({-2.F, 4.F}), name);
    const at::Tensor to = at::empty({2});
    source->read("negative", to);
    expect_same(to, at::tensor({-2.F, 4.F}), name);
    EXPECT_EQ(source->tensors().size(), 13U);
    EXPECT_EQ(source->form("rows").storage, source->form("whole").storage);
    EXPECT_TRUE(source->form("parameter").is_same_as(source->form("model.weight")));

    const std::map<std::string, std::string> notes{{"epoch", "12"},    {"below", "-5"},
                                                   {"rate", "0.25"},   {"text", "caf\xc3\xa9"},
                                                   {"done", "True"},   {"none", "None"},
                                                   {"set.0", "1"},     {"set.1", "2"},
                                                   {"frozen.0", "3"},  {"size.0", "2"},
                                                   {"size.1", "3"},    {"device", "cuda:1"},
                                                   {"ordered.a", "1"}, {"long_text", std::string(300, 'x')}};
    EXPECT_EQ(source->notes(), notes) << name;
  }
}

TEST_F(TorchFiles, ReadSlices) {
  const auto source = open_source(recorded("values.pt"), {.checksums = false});
  const at::Tensor whole = known(at::kFloat, {4, 6}), to = at::empty({2, 2}), flat = at::empty({5});
  source->read("columns", to, Slice::rows(1, 3));
  expect_same(to, whole.narrow(1, 2, 2).narrow(0, 1, 2), "rows of columns");
  source->read("transposed", flat, Slice::flat(2, 7));
  expect_same(flat, whole.t().reshape({-1}).narrow(0, 2, 5), "flat");
}

TEST_F(TorchFiles, RefuseEverythingElseInAPickle) {
  using rpc::ErrorKind;
  expect_pickle_refused("\x80\2cos\nsystem\nU\4trueR.", "the global 'os.system'", ErrorKind::unsupported);
  expect_pickle_refused("\x80\2cos\nsystem\nU\4trueR.", "at byte 2 of the pickle", ErrorKind::unsupported);
  expect_pickle_refused("\x80\4\x8c\2os\x8c\6system\x93.", "the global 'os.system'", ErrorKind::unsupported);
  expect_pickle_refused(
      "\x80\2"
      "c__builtin__\neval\n.",
      "the global 'builtins.eval'", ErrorKind::unsupported);
  expect_pickle_refused(
      "\x80\2"
      "ctorch\nQInt8Storage\n.",
      "the global 'torch.QInt8Storage'", ErrorKind::unsupported);
  expect_pickle_refused("\x80\6N.", "the protocol is later than 5", ErrorKind::unsupported);
  expect_pickle_refused("\x80\2(i__main__\nX\n.", "the code 105 is not known", ErrorKind::unsupported);
  expect_pickle_refused("\x80\2}U\1xcbuiltins\nset\n\x81.", "the code 129 is not known",
                        ErrorKind::unsupported);
  expect_pickle_refused("", "the pickle is truncated");
  expect_pickle_refused("\x80\2", "the pickle is truncated");
  expect_pickle_refused(
      "\x80\2X\xff\xff\xff\x7f"
      "abc",
      "longer than the pickle");
  expect_pickle_refused(std::string("\x80\4\x8d") + std::string(8, '\xff') + "abc", "longer than the pickle");
  expect_pickle_refused("\x80\2.", "a value is missing");
  expect_pickle_refused("\x80\2t.", "a mark is missing");
  expect_pickle_refused("\x80\2h\1.", "the memo has no value 1");
  expect_pickle_refused("\x80\2NNs.", "a value is missing");
  expect_pickle_refused("\x80\2NNNs.", "expected a dict");
  expect_pickle_refused("\x80\2}(Nu.", "has no value");
  expect_pickle_refused("\x80\2ccollections\nOrderedDict\nNR.", "expected a tuple of arguments");
  expect_pickle_refused("\x80\2NN\x86R.", "a value is missing");
  expect_pickle_refused("\x80\2N)R.", "expected a function to call");
  expect_pickle_refused(
      "\x80\2"
      "ctorch\nfloat32\n)R.",
      "expected a function");
  expect_pickle_refused("\x80\2NQ.", "the description of a storage");
  expect_pickle_refused(
      "\x80\2]N\x85"
      "b.",
      "expected an OrderedDict");
}

TEST_F(TorchFiles, RefuseBombs) {
  const auto refuse = [&](const std::string& pickle, const std::string& what) {
    expect_pickle_refused(pickle, what);
  };
  refuse("\x80\2}q\0U\1ah\0s."s, "contain themselves");
  refuse("\x80\2]q\0h\0a."s, "contain themselves");
  refuse("\x80\2" + std::string(300'000, ']') + ".", "too many values");
  std::string deep = "\x80\2", doubling = "\x80\2]q\0";
  doubling = "\x80\2]q\0"s;
  for (int i = 0; i < 2000; ++i) deep += "]U\4abcd0";  // the texts make the pickle large enough
  refuse(deep + std::string(1999, 'a') + ".", "nested too deep");
  for (char i = 1; i < 60; ++i)
    doubling += "]h"s + static_cast<char>(i - 1) + "ah" + static_cast<char>(i - 1) + "aq" + i;
  refuse(doubling + "U\1x" + "a.", "nested too deep");
  // Three million values below a long name.
  std::string many = "\x80\2](" + std::string(1000, 'N') + "eq\0"s + "0](";
  for (int i = 0; i < 3000; ++i) many += "h\0"s;
  refuse(many + "eq\1" + "0}X\xa0\x0f\0\0"s + std::string(4000, 'k') + "h\1s.", "nested too deep");
  // A list of 1,000 pairs that is copied 100,000 times.
  std::string copies = "\x80\2]q\1(";
  for (int i = 0; i < 1000; ++i) copies += "K\1K\2\x86";
  copies +=
      "e\x85q\2"
      "0ccollections\nOrderedDict\nq\3"
      "0";
  for (int i = 0; i < 100'000; ++i) copies += "h\3h\2R0";
  refuse(copies + "N.", "too many items");
}

TEST_F(TorchFiles, RefuseTensorsOutsideOfTheirStorage) {
  const std::string none = ")", one = "K\1\x85", four = "K\4\x85";
  const auto refuse = [&](const std::string& offset, const std::string& sizes, const std::string& strides) {
    expect_pickle_refused(tensor_pickle("K\4", offset, sizes, strides), "outside of its storage");
  };
  refuse("K\0"s, "K\5\x85", one);
  refuse("K\1", four, one);
  refuse("K\0"s, "K\3\x85", "K\2\x85");
  refuse("K\4", none, none);
  refuse(integer(-1), one, one);
  refuse("K\0"s, integer(-1) + "\x85", one);
  refuse("K\0"s, "K\2\x85", integer(-1) + "\x85");
  refuse("K\0"s, four, none);
  refuse(integer(std::numeric_limits<std::int64_t>::max()), four, one);
  refuse("K\0"s, integer(std::int64_t{1} << 62) + "\x85", four);
  refuse("K\0"s, integer(std::int64_t{1} << 40) + integer(std::int64_t{1} << 40) + "\x86", "K\0K\0\x86"s);
  refuse("K\0"s, "K\0"s + integer(std::int64_t{1} << 40) + integer(std::int64_t{1} << 40) + "\x87",
         "K\0K\0K\0\x87"s);
  expect_pickle_refused(tensor_pickle("K\4", "K\0"s, "(" + std::string(130, 'N') + "t", one),
                        "130 dimensions");
  expect_pickle_refused(tensor_pickle("N", "K\0"s, four, one), "the size of a storage");
  // What is right, to see that the others are refused for what they are.
  const auto source =
      open_source(put("right.pt", torch_zip({{"a/data.pkl", tensor_pickle("K\4", "K\1", "K\3\x85", one)},
                                             {"a/data/0", std::string(16, 'x')}})));
  EXPECT_EQ(bytes_of(source->view("tensor")), std::string(12, 'x'));
}

TEST_F(TorchFiles, RefuseOtherZipFiles) {
  using rpc::ErrorKind;
  const std::string pickle = tensor_pickle("K\4", "K\0"s, "K\4\x85", "K\1\x85"), data(16, 'x');
  const auto refuse = [&](const Records& records, const std::string& what,
                          ErrorKind kind = ErrorKind::failed_precondition) {
    expect_refused(put("file.pt", torch_zip(records)), what, kind);
  };
  refuse({{"a/other", "x"}}, "without data.pkl", ErrorKind::unsupported);
  refuse({{"a/data.pkl", pickle}, {"a/constants.pkl", "x"}}, "a TorchScript module", ErrorKind::unsupported);
  refuse({{"a/data.pkl", pickle}, {"a/byteorder", "big"}, {"a/data/0", data}}, "in the order 'big'",
         ErrorKind::unsupported);
  refuse({{"a/data.pkl", pickle}}, "is missing");
  refuse({{"a/data.pkl", pickle}, {"a/data/0", "short"}}, "outside of its storage");
  refuse({{"a/data.pkl", pickle}, {"a/data.pkl", pickle}}, "occurs twice");
  refuse({{"a/data.pkl", pickle}, {"b/data.pkl", pickle}, {"a/data/0", data}}, "two pickles");
  refuse({{"a/data.pkl", "\x80\2}" + std::string("U\3a.b") + pickle.substr(2, pickle.size() - 3) +
                             "sU\1a}U\1b" + pickle.substr(2, pickle.size() - 3) + "ss."},
          {"a/data/0", data}},
         "two tensors whose path is 'a.b'");

  const std::string whole = torch_zip({{"a/data.pkl", pickle}, {"a/data/0", data}});
  ASSERT_EQ(open_source(put("right.pt", whole))->tensors().size(), 1U);
  for (std::size_t size = 4; size < whole.size(); size += 7)
    expect_refused(put("file.pt", whole.substr(0, size)), "is damaged");
  // Each changed byte is refused, or changes nothing that is read, such as a date or padding.
  int refused = 0;
  for (std::size_t at = 4; at < whole.size(); at += 3) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0xff);
    const auto error = weft::test::error_of([&] {
      EXPECT_EQ(bytes_of(open_source(put("file.pt", changed))->view("tensor")), data) << at;
      return 0;
    });
    refused += error.has_value();
  }
  EXPECT_GT(refused, static_cast<int>(pickle.size() + data.size()) / 3 + 50);

  const auto change = [&](const std::string& magic, std::size_t at, const std::string& bytes) {
    std::string changed = whole;
    changed.replace(changed.find(magic) + at, bytes.size(), bytes);
    return put("file.pt", changed);
  };
  expect_refused(change("PK\1\2", 10, "\x08"), "is compressed", ErrorKind::unsupported);
  expect_refused(change("PK\1\2", 8, "\x01"), "is compressed or encrypted", ErrorKind::unsupported);
  expect_refused(change("PK\6\6", 32, std::string(8, '\x7f')), "records");
  expect_refused(change("PK\6\6", 48, std::string(8, '\x7f')), "is outside of the file");
  expect_refused(change("PK\6\7", 8, std::string(8, '\x7f')), "no end record of zip64");
  std::string damaged = whole;
  damaged[damaged.find(data)] = 'y';
  expect_refused(put("file.pt", damaged), "the checksum of the 16 bytes");
  expect_refused(put("file.pt", damaged), "OpenOptions::checksums = false");
  EXPECT_EQ(
      weft::test::kind_of([&] { return open_source(path("file.pt"))->read("tensor", at::empty({4})), 0; }),
      ErrorKind::failed_precondition);
  EXPECT_EQ(bytes_of(open_source(put("file.pt", damaged), {.checksums = false})->view("tensor")).front(),
            'y');
  damaged = whole;
  damaged[damaged.find("FloatStorage")] = 'f';
  expect_refused(put("file.pt", damaged), "another checksum");
}

}  // namespace
}  // namespace weft::weights::torch_file_test
