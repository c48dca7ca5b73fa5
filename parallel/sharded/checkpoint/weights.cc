#include <weft/parallel/sharded/checkpoint/weights.h>

#include <weft/parallel/sharded/checkpoint/writer_plan.h>
#include <weft/parallel/training/internal/agreement.h>
#include <weft/parallel/weights/internal/file_sink.h>
#include <weft/parallel/weights/internal/match.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/error.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::sharded {

// What a rank has.
struct RankTensors {
  std::vector<SliceRange> slices = {};
  std::vector<std::uint8_t> dtypes = {};  // of the slices
  std::map<std::string, std::string> aliases = {};
};
WEFT_CODEC(RankTensors, slices, dtypes, aliases)

namespace {

using collectives::Group;
using rpc::Error;
using rpc::ErrorKind;
using training::run_on_all_ranks;
using training::throw_on_all_ranks;
using weights::Slice;
using weights::TensorForm;
using weights::TensorForms;

// What all ranks have together. The same on all ranks.
struct WorldTensors {
  std::vector<std::vector<SliceRange>> slices = {};                  // by rank
  std::map<std::string, std::vector<std::string>> other_names = {};  // of the tensors that have some
  TensorForms forms = {};  // by all names; names of one tensor have one `storage`
};

std::int64_t numel_of(const SlicedTensor& tensor) {
  return TensorForm{tensor.values.scalar_type(), tensor.sizes}.numel();
}

WorldTensors gather_tensors(const Group& world, const SlicedState& state) {
  RankTensors own{.aliases = state.aliases};
  for (const auto& [name, tensor] : state.tensors) {
    own.slices.push_back(range_of(name, tensor));
    own.dtypes.push_back(static_cast<std::uint8_t>(tensor.values.scalar_type()));
  }
  WorldTensors all;
  std::map<std::string, std::string> aliases;
  for (RankTensors& rank : world.all_gather_object(own).get()) {
    aliases.merge(rank.aliases);
    for (std::size_t i = 0; i < rank.slices.size(); ++i) {
      const TensorForm form{static_cast<at::ScalarType>(rank.dtypes[i]), rank.slices[i].sizes};
      const auto [first, added] = all.forms.try_emplace(rank.slices[i].name, form);
      if (first->second.sizes != form.sizes || first->second.dtype != form.dtype)
        throw_on_all_ranks(world, Error(ErrorKind::invalid_argument,
                                        "tensor '" + first->first + "' is " + to_text(form) + " on rank " +
                                            std::to_string(all.slices.size()) + ", on a lower rank it is " +
                                            to_text(first->second) + ", expected the same on all ranks"));
    }
    all.slices.push_back(std::move(rank.slices));
  }
  for (const auto& [other, name] : aliases) {
    const auto found = all.forms.find(name);
    if (found == all.forms.end() || all.forms.contains(other)) continue;
    found->second.storage = name;
    all.other_names[name].push_back(other);
  }
  for (const auto& [name, others] : all.other_names)
    for (const std::string& other : others) all.forms[other] = all.forms.at(name);
  return all;
}

// Reads this rank's elements of a tensor of the file.
void read_slice(const weights::Source& source, const std::string& name, const SlicedTensor& to,
                bool convert) {
  const std::int64_t count = to.values.numel();
  if (count == 0) return;
  if (!to.runs)
    return source.read(name, to.values.view(to.sizes.empty() ? at::IntArrayRef() : to.values.sizes()),
                       to.sizes.empty() ? Slice{} : Slice::flat(to.begin, to.begin + count), convert);
  // The rows of a table of the runs' elements that have the range.
  const Runs& runs = *to.runs;
  const std::int64_t first = to.begin / runs.length, end = (to.begin + count + runs.length - 1) / runs.length;
  const at::Tensor rows = source.view(name).reshape({-1, runs.distance}).narrow(0, first, end - first);
  to.values.copy_(
      rows.narrow(1, runs.first, runs.length).reshape({-1}).narrow(0, to.begin - first * runs.length, count));
}

// Calls write(values, slice) for each contiguous part of the whole tensor.
template <class Write>
void for_each_range(const SlicedTensor& from, Write write) {
  const std::int64_t count = from.values.numel();
  if (count == 0) return;
  if (from.sizes.empty()) return write(from.values.view(at::IntArrayRef()), Slice{});
  const Runs runs = from.runs.value_or(Runs::all(numel_of(from)));
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t position = from.begin + done,
                       part = std::min(count - done, runs.length - position % runs.length),
                       element = runs.element(position);
    write(from.values.narrow(0, done, part), Slice::flat(element, element + part));
    done += part;
  }
}

}  // namespace

weights::LoadReport load_weights(const Group& world, const SlicedState& state,
                                 const std::filesystem::path& path, const weights::LoadOptions& options,
                                 const weights::OpenOptions& open) {
  std::shared_ptr<weights::Source> source;
  run_on_all_ranks(world, [&] { source = weights::open_source(path, open); });
  return load_weights(world, state, *source, options);
}

weights::LoadReport load_weights(const Group& world, const SlicedState& state, const weights::Source& source,
                                 const weights::LoadOptions& options) {
  const at::NoGradGuard no_history;
  const WorldTensors all = gather_tensors(world, state);
  weights::Match found;
  run_on_all_ranks(world, [&] {
    found = weights::match(source, all.forms, options);
    if (world.rank() == 0) weights::expect_same(source, found);
  });
  run_on_all_ranks(world, [&] {
    for (const auto& [to, name] : found.read) {
      const std::string& storage = all.forms.at(to).storage;
      const auto own = state.tensors.find(storage.empty() ? to : storage);
      if (own != state.tensors.end()) read_slice(source, name, own->second, options.convert);
    }
  });
  return std::move(found.report);
}

void save_weights(const Group& world, const SlicedState& state, const std::filesystem::path& path,
                  const weights::SaveOptions& options, std::uint64_t max_shard_bytes) {
  const at::NoGradGuard no_history;
  const WorldTensors all = gather_tensors(world, state);
  const auto rank = static_cast<std::size_t>(world.rank());
  std::unique_ptr<weights::Sink> sink;
  std::map<std::string, std::string> names;  // -> of the file
  const auto declare = [&] {
    const weights::RenamedForms renamed = weights::renamed(all.forms, options);
    for (const auto& [to, name] : renamed.names) names[name] = to;
    std::map<std::string, std::string> notes = state.notes;
    for (const auto& [name, text] : options.notes) notes[name] = text;
    sink = weights::create_sink(
        path, {.rank = world.rank(), .ranks = world.size(), .max_shard_bytes = max_shard_bytes});
    sink->declare(renamed.forms, notes);
  };
  const auto write = [&] {
    const auto writes = plan_writers(all.slices);
    for (const std::string& name : writes[rank]) {
      std::vector<std::string> of_tensor{name};  // one of them is written
      if (const auto others = all.other_names.find(name); others != all.other_names.end())
        of_tensor.insert(of_tensor.end(), others->second.begin(), others->second.end());
      for (const std::string& each : of_tensor)
        if (const auto to = names.find(each); to != names.end())
          for_each_range(state.tensors.at(name), [&](const at::Tensor& values, const Slice& slice) {
            sink->write(to->second, values, slice, options.dtype.has_value());
          });
    }
  };
  run_on_all_ranks(world, [&] {
    if (rank == 0) declare();
  });
  run_on_all_ranks(world, [&] {
    if (rank != 0) declare();
  });
  run_on_all_ranks(world, [&] {
    write();
    if (rank != 0) sink->finish();
  });
  run_on_all_ranks(world, [&] {
    if (rank == 0) sink->finish();
  });
}

}  // namespace weft::sharded
