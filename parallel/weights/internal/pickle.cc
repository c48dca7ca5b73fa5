// The virtual machine is that of Python's Lib/pickletools.py: a stack of values, marks in it, and a memo of
// values by number.
#include <weft/parallel/weights/internal/pickle.h>

#include <weft/parallel/weights/internal/dtypes.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <unordered_map>

namespace weft::weights {
namespace {

using Kind = PickledValue::Kind;
using Index = std::uint32_t;

enum class Callable : std::int64_t {
  tensor_v2,
  tensor_v3,
  parameter,
  ordered_dict,
  size,
  device,
  set,
  bytes,
  encode,
  complex,
  storage,
  dtype,
  record  // record + i: the class i of the caller
};

struct KnownGlobal {
  const char* name;
  Callable callable;
};
constexpr KnownGlobal known_globals[] = {
    {"torch._utils._rebuild_tensor_v2", Callable::tensor_v2},
    {"torch._utils._rebuild_tensor_v3", Callable::tensor_v3},
    {"torch._utils._rebuild_parameter", Callable::parameter},
    {"collections.OrderedDict", Callable::ordered_dict},
    {"torch.Size", Callable::size},
    {"torch.device", Callable::device},
    {"builtins.set", Callable::set},
    {"builtins.frozenset", Callable::set},
    {"builtins.bytes", Callable::bytes},
    {"builtins.bytearray", Callable::bytes},
    {"builtins.complex", Callable::complex},
    {"_codecs.encode", Callable::encode},
};
constexpr std::size_t max_dims = 64, max_text = 200;  // max_text: of names of which there are copies
constexpr std::string_view python2_builtins = "__builtin__.", builtins = "builtins.";

// The codes of pickletools.opcodes that this reader knows.
enum Code : char {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  bin_float = 'G',
  bin_int = 'J',
  bin_int1 = 'K',
  bin_int2 = 'M',
  none = 'N',
  bin_pers_id = 'Q',
  reduce = 'R',
  bin_unicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  dict = 'd',
  appends = 'e',
  bin_get = 'h',
  long_bin_get = 'j',
  list = 'l',
  empty_list = ']',
  bin_put = 'q',
  long_bin_put = 'r',
  set_item = 's',
  tuple = 't',
  empty_tuple = ')',
  set_items = 'u',
  empty_dict = '}',
  bin_string = 'T',
  short_bin_string = 'U',
  bin_bytes = 'B',
  short_bin_bytes = 'C',
  proto = '\x80',
  tuple1 = '\x85',
  tuple2 = '\x86',
  tuple3 = '\x87',
  new_object = '\x81',
  new_true = '\x88',
  new_false = '\x89',
  long1 = '\x8a',
  long4 = '\x8b',
  short_bin_unicode = '\x8c',
  bin_unicode8 = '\x8d',
  bin_bytes8 = '\x8e',
  empty_set = '\x8f',
  add_items = '\x90',
  frozen_set = '\x91',
  stack_global = '\x93',
  memoize = '\x94',
  frame = '\x95',
  byte_array8 = '\x96'
};

class Unpickler {
 public:
  Unpickler(std::string_view pickle, const RefusePickle& refuse, std::span<const std::string_view> records)
      : pickle_(pickle), refuse_to_(refuse), records_(records) {}

  Pickled run() {
    result_.values = {{Kind::plain, "None"}, {Kind::plain, "False"}, {Kind::plain, "True", 1}};
    while (step(take<char>())) {
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why, bool unsupported = false) const {
    refuse_to_(unsupported, "at byte " + std::to_string(begin_) + " of the pickle, " + why);
    std::abort();  // refuse_to_ throws
  }

  [[noreturn]] void refuse_kind(const char* expected) const;

  // --- Bytes ---
  template <class T>
  T take() {
    if (pickle_.size() - at_ < sizeof(T)) refuse("the pickle is truncated");
    T value;
    std::memcpy(&value, pickle_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string_view take_bytes(std::uint64_t size) {
    if (size > pickle_.size() - at_)
      refuse("a value of " + std::to_string(size) + " bytes is longer than the pickle");
    const std::string_view bytes = pickle_.substr(at_, size);
    at_ += size;
    return bytes;
  }
  std::string_view take_line() {
    const std::size_t end = pickle_.find('\n', at_);
    if (end == std::string_view::npos) refuse("the pickle is truncated");
    const std::string_view line = pickle_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  // --- Values ---
  PickledValue& at(Index index) { return result_.values[index]; }
  void push(Index index) { stack_.push_back(index); }
  void push(PickledValue value) {
    count(value.items.size());
    if (result_.values.size() > pickle_.size() / 2 + 1000)
      refuse("the pickle has too many values for its size");
    push(static_cast<Index>(result_.values.size()));
    result_.values.push_back(std::move(value));
  }
  void push_integer(std::int64_t number) { push({Kind::integer, std::to_string(number), number}); }
  Index pop_one() {
    if (stack_.size() == (marks_.empty() ? 0 : marks_.back())) refuse("a value is missing on the stack");
    const Index index = stack_.back();
    stack_.pop_back();
    return index;
  }
  Index top() {
    const Index index = pop_one();
    push(index);
    return index;
  }
  std::vector<Index> pop_to_mark() {
    if (marks_.empty()) refuse("a mark is missing on the stack");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Index> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }
  PickledValue& expect(Index index, Kind kind, const char* what) {
    PickledValue& value = at(index);
    if (value.kind != kind) refuse_kind(what);
    return value;
  }
  void push_tuple(std::size_t size) {
    std::vector<Index> items(size);
    for (std::size_t i = size; i-- > 0;) items[i] = pop_one();
    push({Kind::sequence, {}, 0, std::move(items)});
  }
  // Limits the memory of a pickle that copies a long container again and again.
  void count(std::size_t items) {
    items_ += items;
    if (items_ > 2 * pickle_.size() + 1000) refuse("the pickle has too many items for its size");
  }
  void extend(Index container, Kind kind, const std::vector<Index>& items, const char* what) {
    std::vector<Index>& into = expect(container, kind, what).items;
    if (kind == Kind::dictionary && items.size() % 2 != 0) refuse("a key of a dict has no value");
    count(items.size());
    into.insert(into.end(), items.begin(), items.end());
  }
  void put_memo(Index key) { memo_[key] = top(); }
  void get_memo(Index key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) refuse("the memo has no value " + std::to_string(key));
    push(found->second);
  }
  void push_long(std::uint64_t size) {
    const std::string_view bytes = take_bytes(size);
    if (size > sizeof(std::int64_t)) return push(PickledValue{Kind::opaque});  // such as a seed
    std::int64_t number = !bytes.empty() && (bytes.back() & 0x80) != 0 ? -1 : 0;
    std::memcpy(&number, bytes.data(), bytes.size());
    push_integer(number);
  }
  void push_global(const std::string& module, const std::string& name) {
    std::string full = module + "." + name;
    if (full.starts_with(python2_builtins))
      full = std::string(builtins) + full.substr(python2_builtins.size());
    for (const KnownGlobal& known : known_globals)
      if (full == known.name) return push({Kind::global, full, static_cast<std::int64_t>(known.callable)});
    const bool of_torch = module == "torch";
    const Dtype* const storage = of_torch ? dtype_of_storage(name) : nullptr;
    if (storage != nullptr || full == "torch.storage.UntypedStorage" || full == "torch.UntypedStorage")
      return push({Kind::global, storage != nullptr ? storage->torch : "",
                   static_cast<std::int64_t>(Callable::storage)});
    if (const Dtype* const dtype = of_torch ? dtype_of_torch(name) : nullptr; dtype != nullptr)
      return push({Kind::global, dtype->torch, static_cast<std::int64_t>(Callable::dtype)});
    if (const auto found = std::find(records_.begin(), records_.end(), full); found != records_.end())
      return push(
          {Kind::global, full, static_cast<std::int64_t>(Callable::record) + (found - records_.begin())});
    refuse("the file names the global '" + full.substr(0, max_text) +
               "', which is refused: only tensors, containers and plain values are read",
           true);
  }
  Callable callable_of(const PickledValue& value) const {
    return static_cast<Callable>(std::min(value.number, static_cast<std::int64_t>(Callable::record)));
  }

  std::vector<std::int64_t> numbers_of(Index index) {
    std::vector<std::int64_t> numbers;
    const std::vector<Index>& items = expect(index, Kind::sequence, "a tuple of numbers").items;
    if (items.size() > max_dims)
      refuse("a tensor has " + std::to_string(items.size()) + " dimensions, expected at most " +
             std::to_string(max_dims));
    for (const Index item : items) numbers.push_back(expect(item, Kind::integer, "a number").number);
    return numbers;
  }

  // ('storage', type, key, location, numel)
  void push_storage(Index id) {
    const PickledValue& parts = expect(id, Kind::sequence, "the description of a storage");
    if (parts.items.size() != 5 || at(parts.items[0]).text != "storage")
      refuse("expected the description of a storage");
    const PickledValue& type = expect(parts.items[1], Kind::global, "a type of storage");
    if (callable_of(type) != Callable::storage) refuse("'" + type.text + "' is not a type of storage");
    const Dtype* const dtype = dtype_of_torch(type.text);
    PickledStorage storage{expect(parts.items[2], Kind::text, "the key of a storage").text,
                           dtype == nullptr ? at::ScalarType::Undefined : dtype->type,
                           expect(parts.items[4], Kind::integer, "the size of a storage").number};
    if (storage.key.size() > max_text) refuse("the key of a storage is too long");
    push({Kind::storage, {}, static_cast<std::int64_t>(result_.storages.size())});
    result_.storages.push_back(std::move(storage));
  }

  void push_tensor(const std::vector<Index>& parts, bool with_dtype) {
    const std::size_t metadata = with_dtype ? 7 : 6;
    if (parts.size() < metadata || parts.size() > metadata + 1)
      refuse("a tensor has " + std::to_string(parts.size()) + " parts, expected " + std::to_string(metadata));
    PickledTensor tensor;
    tensor.storage =
        result_.storages[static_cast<std::size_t>(expect(parts[0], Kind::storage, "a storage").number)];
    tensor.offset = expect(parts[1], Kind::integer, "the offset of a tensor").number;
    tensor.sizes = numbers_of(parts[2]);
    tensor.strides = numbers_of(parts[3]);
    tensor.dtype = tensor.storage.dtype;
    if (with_dtype) {
      const PickledValue& dtype = expect(parts[6], Kind::global, "a dtype");
      if (callable_of(dtype) != Callable::dtype) refuse("'" + dtype.text + "' is not a dtype");
      tensor.dtype = dtype_of_torch(dtype.text)->type;
    }
    if (tensor.dtype == at::ScalarType::Undefined) refuse("a tensor has no dtype");
    if (parts.size() > metadata) {
      const PickledValue& bits = at(parts[metadata]);
      for (std::size_t i = 0; bits.kind == Kind::dictionary && i + 1 < bits.items.size(); i += 2) {
        const bool set = at(bits.items[i + 1]).number != 0;
        if (at(bits.items[i]).text == "conj") tensor.conjugate = set;
        if (at(bits.items[i]).text == "neg") tensor.negative = set;
      }
    }
    count(16 + 2 * tensor.sizes.size() + tensor.storage.key.size() / 8);  // they may be copies
    push({Kind::tensor, {}, static_cast<std::int64_t>(result_.tensors.size())});
    result_.tensors.push_back(std::move(tensor));
  }

  void call(Index function, Index arguments) {
    const PickledValue callee = expect(function, Kind::global, "a function to call");
    const std::size_t size = expect(arguments, Kind::sequence, "a tuple of arguments").items.size();
    if (callable_of(callee) == Callable::record)
      return push({Kind::record,
                   {},
                   callee.number - static_cast<std::int64_t>(Callable::record),
                   std::vector<Index>{arguments}});
    if (size > 8) refuse("'" + callee.text + "' has " + std::to_string(size) + " arguments");
    const std::vector<Index> args = at(arguments).items;
    const auto expect_arguments = [&](std::size_t least, std::size_t most) {
      if (args.size() < least || args.size() > most)
        refuse("'" + callee.text + "' has " + std::to_string(args.size()) + " arguments");
    };
    switch (callable_of(callee)) {
      case Callable::tensor_v2:
        return push_tensor(args, false);
      case Callable::tensor_v3:
        return push_tensor(args, true);
      case Callable::parameter:
        expect_arguments(1, 3);
        expect(args[0], Kind::tensor, "a tensor");
        return push(args[0]);
      case Callable::ordered_dict: {
        expect_arguments(0, 1);
        std::vector<Index> items;
        if (!args.empty())
          for (const Index pair : expect(args[0], Kind::sequence, "the items of an OrderedDict").items) {
            const std::vector<Index>& both = expect(pair, Kind::sequence, "a pair").items;
            if (both.size() != 2) refuse("an item of an OrderedDict is not a pair");
            items.insert(items.end(), both.begin(), both.end());
          }
        return push({Kind::dictionary, {}, 0, std::move(items)});
      }
      case Callable::size:
      case Callable::set:
        expect_arguments(0, 1);
        if (args.empty()) return push(PickledValue{Kind::sequence});
        expect(args[0], Kind::sequence, "a sequence");
        return push(args[0]);
      case Callable::device:
        expect_arguments(1, 2);
        if (expect(args[0], Kind::text, "the name of a device").text.size() > max_text)
          refuse("the name of a device is too long");
        return push({Kind::plain,
                     at(args[0]).text + (args.size() == 2 ? ":" + std::to_string(at(args[1]).number) : "")});
      case Callable::complex:
      case Callable::bytes:
      case Callable::encode:
        return push(PickledValue{Kind::opaque});
      case Callable::storage:
      case Callable::dtype:
      case Callable::record:
        break;
    }
    refuse("'" + callee.text + "' is called, expected a function");
  }

  bool step(char code) {
    begin_ = at_ - 1;
    switch (static_cast<Code>(code)) {
      case stop:
        result_.root = pop_one();
        return false;
      case proto:
        if (take<std::uint8_t>() > 5) refuse("the protocol is later than 5", true);
        return true;
      case frame:
        return take<std::uint64_t>(), true;
      case mark:
        return marks_.push_back(stack_.size()), true;
      case pop:
        if (!marks_.empty() && marks_.back() == stack_.size()) return marks_.pop_back(), true;
        return pop_one(), true;
      case pop_mark:
        return pop_to_mark(), true;
      case dup:
        return push(top()), true;

      case none:
        return push(Index{0}), true;
      case new_false:
        return push(Index{1}), true;
      case new_true:
        return push(Index{2}), true;
      case bin_int:
        return push_integer(take<std::int32_t>()), true;
      case bin_int1:
        return push_integer(take<std::uint8_t>()), true;
      case bin_int2:
        return push_integer(take<std::uint16_t>()), true;
      case long1:
        return push_long(take<std::uint8_t>()), true;
      case long4:
        return push_long(take<std::uint32_t>()), true;
      case bin_float: {
        const auto number = std::bit_cast<double>(__builtin_bswap64(take<std::uint64_t>()));
        char text[32];
        const auto end = std::to_chars(text, text + sizeof text, number);
        return push({Kind::plain, std::string(text, end.ptr)}), true;
      }
      case short_bin_unicode:
      case short_bin_string:
        return push({Kind::text, std::string(take_bytes(take<std::uint8_t>()))}), true;
      case bin_unicode:
      case bin_string:
        return push({Kind::text, std::string(take_bytes(take<std::uint32_t>()))}), true;
      case bin_unicode8:
        return push({Kind::text, std::string(take_bytes(take<std::uint64_t>()))}), true;
      case short_bin_bytes:
        return take_bytes(take<std::uint8_t>()), push(PickledValue{Kind::opaque}), true;
      case bin_bytes:
        return take_bytes(take<std::uint32_t>()), push(PickledValue{Kind::opaque}), true;
      case bin_bytes8:
      case byte_array8:
        return take_bytes(take<std::uint64_t>()), push(PickledValue{Kind::opaque}), true;

      case empty_list:
      case empty_tuple:
      case empty_set:
        return push(PickledValue{Kind::sequence}), true;
      case empty_dict:
        return push(PickledValue{Kind::dictionary}), true;
      case list:
      case tuple:
      case frozen_set:
        return push({Kind::sequence, {}, 0, pop_to_mark()}), true;
      case dict: {
        std::vector<Index> items = pop_to_mark();
        if (items.size() % 2 != 0) refuse("a key of a dict has no value");
        return push({Kind::dictionary, {}, 0, std::move(items)}), true;
      }
      case tuple1:
        return push_tuple(1), true;
      case tuple2:
        return push_tuple(2), true;
      case tuple3:
        return push_tuple(3), true;
      case append: {
        const Index item = pop_one();
        return extend(top(), Kind::sequence, {item}, "a list"), true;
      }
      case appends:
      case add_items: {
        const std::vector<Index> items = pop_to_mark();
        return extend(top(), Kind::sequence, items, "a list or set"), true;
      }
      case set_item: {
        const Index value = pop_one(), key = pop_one();
        return extend(top(), Kind::dictionary, {key, value}, "a dict"), true;
      }
      case set_items: {
        const std::vector<Index> items = pop_to_mark();
        return extend(top(), Kind::dictionary, items, "a dict"), true;
      }

      case bin_put:
        return put_memo(take<std::uint8_t>()), true;
      case long_bin_put:
        return put_memo(take<std::uint32_t>()), true;
      case memoize:
        return put_memo(static_cast<Index>(memo_.size())), true;
      case bin_get:
        return get_memo(take<std::uint8_t>()), true;
      case long_bin_get:
        return get_memo(take<std::uint32_t>()), true;

      case global: {
        const std::string module(take_line());
        return push_global(module, std::string(take_line())), true;
      }
      case stack_global: {
        const Index name = pop_one(), module = pop_one();
        return push_global(expect(module, Kind::text, "the name of a module").text,
                           expect(name, Kind::text, "the name of a global").text),
               true;
      }
      case bin_pers_id:
        return push_storage(pop_one()), true;
      case reduce: {
        const Index arguments = pop_one(), function = pop_one();
        return call(function, arguments), true;
      }
      case new_object: {
        if (records_.empty()) break;
        const Index arguments = pop_one(), type = pop_one();
        if (callable_of(expect(type, Kind::global, "a class")) != Callable::record)
          refuse("'" + at(type).text + "' has no objects");
        return call(type, arguments), true;
      }
      case build: {
        const Index state = pop_one(), built = top();
        if (at(built).kind != Kind::record)  // attributes such as _metadata, which no tensor is in
          return expect(built, Kind::dictionary, "an OrderedDict"), true;
        if (at(built).items.size() != 1) refuse("an object has two states");
        count(1);
        return at(built).items.push_back(state), true;
      }
    }
    refuse("the code " + std::to_string(static_cast<unsigned char>(code)) + " is not known", true);
  }

  const std::string_view pickle_;
  const RefusePickle& refuse_to_;
  const std::span<const std::string_view> records_;
  std::size_t at_ = 0, begin_ = 0;  // begin_: of the code that runs
  std::size_t items_ = 0;           // of all containers
  Pickled result_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<Index, Index> memo_;
};

void Unpickler::refuse_kind(const char* expected) const {
  refuse("there is another value, expected " + std::string(expected));
}

// --- Writing ---

class Pickler {
 public:
  std::string out{"\x80\x02"};

  template <class T>
  void code(Code code, T number) {
    out += code;
    out.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void text(const std::string& text) {
    code(bin_unicode, static_cast<std::uint32_t>(text.size()));
    out += text;
  }
  void integer(std::int64_t number) {
    code(long1, std::uint8_t{8});
    out.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void integers(const std::vector<std::int64_t>& numbers) {
    out += mark;
    for (const std::int64_t number : numbers) integer(number);
    out += tuple;
  }
  void name(const std::string& module, const std::string& name) {
    out += global;
    out += module + "\n" + name + "\n";
  }

  void tensor(const PickledTensor& tensor) {
    const Dtype& dtype = *dtype_of(tensor.dtype);
    const bool typed = dtype.storage != nullptr;
    name("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    out += mark;
    out += mark;
    text("storage");
    name(typed ? "torch" : "torch.storage", typed ? dtype.storage : "UntypedStorage");
    text(tensor.storage.key);
    text("cpu");
    integer(tensor.storage.numel);
    out += tuple;
    out += bin_pers_id;
    integer(tensor.offset);
    integers(tensor.sizes);
    integers(tensor.strides);
    out += new_false;  // requires_grad
    name("collections", "OrderedDict");
    out += empty_tuple;
    out += reduce;  // the hooks
    if (!typed) name("torch", dtype.torch);
    out += tuple;
    out += reduce;
  }
};

}  // namespace

Pickled read_pickle(std::string_view pickle, const RefusePickle& refuse,
                    std::span<const std::string_view> records) {
  return Unpickler(pickle, refuse, records).run();
}

std::string write_pickle(const std::vector<std::pair<std::string, PickledTensor>>& tensors) {
  Pickler pickler;
  pickler.out += empty_dict;
  for (const auto& [name, tensor] : tensors) {
    pickler.text(name);
    pickler.tensor(tensor);
    pickler.out += set_item;
  }
  return std::move(pickler.out) + static_cast<char>(stop);
}

}  // namespace weft::weights
