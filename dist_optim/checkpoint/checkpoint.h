// Checkpoints: modules behind RRefs, and their optimizer's state, in one file.
//
//   const dist_optim::Modules modules{shared, head};  // g++ 12 takes no braced list within a co_await
//   dist_optim::Notes notes{{"step", std::to_string(step)}};
//   co_await dist_optim::save("run/latest", modules, optimizer, notes);
//   notes = co_await dist_optim::load("run/latest", modules, optimizer);
//
// The caller writes the file, and all its data pass through the caller's memory. The file names no owner:
// when it is loaded, the same modules, in the same order, may live on other owners, and on more or fewer of
// them. It is a tensor file (tensor_file.h), written atomically: if the program dies while it saves, the
// previous file remains.
//
// Each module and its optimizer's state are of one version, and the modules of one owner are read at one
// moment: the owner copies them together. If other trainers step during save(), modules of different owners
// may have different versions. load() sets a module and its optimizer's state together. It is not a step of
// the optimizer: the state afterwards is that of the file. ShardedEmbedding::save() writes the rows of an
// embedding to separate files.
//
// Errors of save(): those of write_tensor_file() and of the calls to the owners. Errors of load(): those of
// read_tensor_file() and of the calls; `invalid_argument` if the file has other modules or the state of
// another optimizer. If a module refuses its part of the file, no module changes. If an owner fails after all
// have accepted their parts, the error lists the modules that have the state of the file.
#pragma once

#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_optim/distributed_optimizer.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace weft::dist_optim {

// State that the program needs to continue, as text: for example its step and its seed. save() refuses names
// that begin with "weft.".
using Notes = std::map<std::string, std::string>;
using Modules = std::vector<dist_autograd::RemoteModule>;

// The optimizer's handle must live until the future completes. Its modules may differ from `modules`.
WEFT_EXPORT rpc::Future<void> save(std::filesystem::path path, Modules modules,
                                   DistributedOptimizer& optimizer, Notes notes = {});
WEFT_EXPORT rpc::Future<void> save(std::filesystem::path path, Modules modules, Notes notes = {});

WEFT_EXPORT rpc::Future<Notes> load(std::filesystem::path path, Modules modules,
                                    DistributedOptimizer& optimizer);
WEFT_EXPORT rpc::Future<Notes> load(std::filesystem::path path, Modules modules);

}  // namespace weft::dist_optim
