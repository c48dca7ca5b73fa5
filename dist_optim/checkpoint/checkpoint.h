// Checkpoints: modules behind RRefs, and their optimizer's state, in one file.
//
//   const dist_optim::Modules modules{shared, head};  // g++ 12 takes no braced list within a co_await
//   dist_optim::Notes notes{{"step", std::to_string(step)}};
//   co_await dist_optim::save("run/latest", modules, optimizer, notes);
//   notes = co_await dist_optim::load("run/latest", modules, optimizer);
//
// The caller writes the file, and all its data pass through the caller's memory. It names no owner: the same
// modules, in the same order, may live on other owners when it is loaded, and on more or fewer of them. It is
// a tensor file (tensor_file.h), written atomically: if the program dies while it saves, the previous file
// remains.
//
// Each module and its optimizer's state are of one version, and the modules of one owner are of one moment:
// the owner copies them together. Between owners the versions differ if other trainers step meanwhile.
// Loading also gives each owner both together. Loading is no step of the optimizer: its state is that of the
// file. Rows of a ShardedEmbedding have separate files (its save()).
//
// Errors of save: those of write_tensor_file(), and the owners'. Errors of load: those of read_tensor_file();
// `invalid_argument` if the file is of other modules, or of another optimizer. Then the modules that did not
// refuse are loaded, parameters and optimizer's state; the others are unchanged.
#pragma once

#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_optim/distributed_optimizer.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace weft::dist_optim {

// State that the program needs to continue, as text: its step, its seed. Names that begin with "weft." are
// refused.
using Notes = std::map<std::string, std::string>;
using Modules = std::vector<dist_autograd::RemoteModule>;

// The handle must live until the future completes; its modules may differ from those that are saved.
WEFT_EXPORT rpc::Future<void> save(std::filesystem::path path, Modules modules,
                                   DistributedOptimizer& optimizer, Notes notes = {});
WEFT_EXPORT rpc::Future<void> save(std::filesystem::path path, Modules modules, Notes notes = {});

WEFT_EXPORT rpc::Future<Notes> load(std::filesystem::path path, Modules modules,
                                    DistributedOptimizer& optimizer);
WEFT_EXPORT rpc::Future<Notes> load(std::filesystem::path path, Modules modules);

}  // namespace weft::dist_optim
