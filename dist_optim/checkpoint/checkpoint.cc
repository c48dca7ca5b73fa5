#include <weft/dist_optim/checkpoint/checkpoint.h>

#include <weft/dist_autograd/module/internal/module_service.h>
#include <weft/dist_optim/checkpoint/tensor_file.h>
#include <weft/dist_optim/service/internal/change_all.h>
#include <weft/dist_optim/service/internal/owner_call.h>
#include <weft/rpc/core/task.h>
#include <weft/rpc/core/when_all.h>
#include <weft/rref/rref_layer.h>

#include <nlohmann/json.hpp>

namespace weft::dist_optim {
namespace {

using dist_autograd::NamedTensor;
using dist_autograd::StateDict;
using Json = nlohmann::json;

// The tensors of a module are "module.INDEX/NAME", those of its optimizer's state "optimizer.INDEX/NAME". The
// note "weft.checkpoint" holds the data that are not tensors.
constexpr auto note_name = "weft.checkpoint";
constexpr int format = 1;

std::string prefix_of(const char* what, std::size_t index) {
  return std::string(what) + "." + std::to_string(index) + "/";
}

[[noreturn]] void refuse(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument,
                   "load: the file is not a checkpoint of these modules: " + why);
}

TensorFile contents_of(std::vector<StateDict> modules, std::optional<DistributedOptimizerState> optimizer,
                       Notes notes) {
  TensorFile file;
  Json about = {{"format", format}, {"modules", Json::array()}};
  for (std::size_t i = 0; i < modules.size(); ++i) {
    Json undefined = Json::array();
    for (NamedTensor& entry : modules[i]) {
      if (entry.tensor.defined()) {
        file.tensors[prefix_of("module", i) + entry.name] = std::move(entry.tensor);
      } else {
        undefined.push_back(entry.name);
      }
    }
    about["modules"].push_back({{"undefined", std::move(undefined)}});
  }
  if (optimizer) {
    about["optimizers"] = Json::array();
    for (std::size_t i = 0; i < optimizer->modules.size(); ++i) {
      OptimizerState& state = optimizer->modules[i];
      about["optimizers"].push_back({{"name", state.optimizer}, {"learning_rates", state.learning_rates}});
      for (auto& [name, tensor] : state.tensors)
        file.tensors[prefix_of("optimizer", i) + name] = std::move(tensor);
    }
  }
  for (const auto& [name, text] : notes)
    if (name.starts_with("weft."))
      throw rpc::Error(
          rpc::ErrorKind::invalid_argument,
          "save: the note '" + name + "' has a name that begins with 'weft.', which is reserved");
  file.notes = std::move(notes);
  file.notes[note_name] = about.dump();
  return file;
}

// The contents of a file, parsed.
struct Loaded {
  std::vector<StateDict> modules;
  std::optional<DistributedOptimizerState> optimizer;
  Notes notes;
};

Loaded taken_apart(TensorFile file) {
  Loaded loaded;
  const auto note = file.notes.find(note_name);
  if (note == file.notes.end() || !file.proven) refuse("the file was not written by save()");
  const std::string text = note->second;
  file.notes.erase(note);
  loaded.notes = std::move(file.notes);
  // All tensors whose names have this prefix, by the rest of the name.
  const auto take = [&](const std::string& prefix) {
    std::map<std::string, at::Tensor> found;
    for (auto at = file.tensors.lower_bound(prefix);
         at != file.tensors.end() && at->first.starts_with(prefix); at = file.tensors.erase(at))
      found.emplace(at->first.substr(prefix.size()), std::move(at->second));
    return found;
  };
  try {
    const Json about = Json::parse(text);
    if (const int found = about.at("format").get<int>(); found > format)
      refuse("its format is " + std::to_string(found) + ", expected at most " + std::to_string(format) +
             ": a later version of weft wrote it");
    for (const Json& entry : about.at("modules")) {
      StateDict state;
      for (auto& [name, tensor] : take(prefix_of("module", loaded.modules.size())))
        state.push_back({name, std::move(tensor)});
      for (const Json& name : entry.at("undefined")) state.push_back({name.get<std::string>(), at::Tensor()});
      loaded.modules.push_back(std::move(state));
    }
    if (about.contains("optimizers")) {
      loaded.optimizer.emplace();
      for (const Json& entry : about.at("optimizers")) {
        const std::size_t index = loaded.optimizer->modules.size();
        loaded.optimizer->modules.push_back({entry.at("name").get<std::string>(),
                                             entry.at("learning_rates").get<std::map<std::string, double>>(),
                                             take(prefix_of("optimizer", index))});
      }
    }
  } catch (const Json::exception& error) {
    refuse(std::string("its description is damaged: ") + error.what());
  }
  return loaded;
}

std::vector<rref::ReferencePtr> references_of(const Modules& modules) {
  std::vector<rref::ReferencePtr> references;
  for (const auto& module : modules) references.push_back(module.reference());
  return references;
}

rpc::Task<void> save_all(std::filesystem::path path, rpc::Future<DistSnapshot> asked, Notes notes) {
  DistSnapshot taken = co_await std::move(asked);
  write_tensor_file(path,
                    contents_of(std::move(taken.modules), std::move(taken.optimizer), std::move(notes)));
}

rpc::Task<void> save_modules(std::filesystem::path path, Modules modules, Notes notes) {
  std::vector<rpc::Future<StateDict>> asked;
  for (const auto& module : modules) asked.push_back(module.state_dict());
  auto values = co_await rpc::when_all(std::move(asked));
  write_tensor_file(path, contents_of(std::move(values), std::nullopt, std::move(notes)));
}

rpc::Task<Notes> load_all(std::filesystem::path path, Modules modules, DistributedOptimizer* optimizer) {
  Loaded loaded = taken_apart(read_tensor_file(path));
  if (loaded.modules.size() != modules.size())
    refuse("it has " + std::to_string(loaded.modules.size()) + " modules, expected " +
           std::to_string(modules.size()));
  if (optimizer != nullptr && !loaded.optimizer) refuse("it has no optimizer's state");
  if (optimizer != nullptr) {
    auto restored =
        optimizer->restore(references_of(modules), {std::move(loaded.modules), std::move(*loaded.optimizer)});
    co_await std::move(restored);
    co_return std::move(loaded.notes);
  }
  std::vector<ObjectChange> changes;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const ObjectChange::Ask check = [&, i] {
      return ask<&dist_autograd::ModuleService::check_state_dict>(modules[i].reference(),
                                                                  without_values(loaded.modules[i]), true);
    };
    const ObjectChange::Ask apply = [&, i] {
      return modules[i]
          .load_state_dict(loaded.modules[i])
          .then([](rpc::Result<dist_autograd::LoadedState>&& done) {
            return done.ok() ? rpc::Result<void>() : rpc::Result<void>(done.error());
          });
    };
    changes.push_back({modules[i].reference(), "module " + std::to_string(i), {check}, apply});
  }
  auto changed = change_all("load", std::move(changes));
  co_await std::move(changed);
  co_return std::move(loaded.notes);
}

// Runs on the handler threads of the agent that holds the references.
template <class T>
rpc::Future<T> start(const Modules& modules, rpc::Task<T> task) {
  if (modules.empty())
    return rpc::Future<T>::made(std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::invalid_argument, "checkpoint: no modules, expected at least one")));
  return std::move(task).start(modules.front().reference()->layer()->core()->handlers());
}

}  // namespace

rpc::Future<void> save(std::filesystem::path path, Modules modules, DistributedOptimizer& optimizer,
                       Notes notes) {
  auto taken = optimizer.snapshot(references_of(modules));
  return start(modules, save_all(std::move(path), std::move(taken), std::move(notes)));
}

rpc::Future<void> save(std::filesystem::path path, Modules modules, Notes notes) {
  return start(modules, save_modules(std::move(path), modules, std::move(notes)));
}

rpc::Future<Notes> load(std::filesystem::path path, Modules modules, DistributedOptimizer& optimizer) {
  return start(modules, load_all(std::move(path), modules, &optimizer));
}

rpc::Future<Notes> load(std::filesystem::path path, Modules modules) {
  return start(modules, load_all(std::move(path), modules, nullptr));
}

}  // namespace weft::dist_optim
