// Checkpoints: modules behind RRefs, and what their optimizer has learnt, in one file.
//
//   const dist_optim::Modules modules{shared, head};  // g++ 12 takes no braced list within a co_await
//   dist_optim::Notes notes{{"step", std::to_string(step)}};
//   co_await dist_optim::save("run/latest", modules, optimizer, notes);
//   notes = co_await dist_optim::load("run/latest", modules, optimizer);
//
// The file is the caller's, and all of it passes through the caller's memory. It names no owner: the same
// modules, in the same order, may live elsewhere when it is loaded, on more owners or on fewer. It is a
// tensor file (tensor_file.h), written atomically: a program that dies while it saves leaves the one before.
//
// Each module and its optimizer's state are of one version, and the modules of one owner are of one moment:
// the owner takes all together. Between owners the versions differ where other trainers step meanwhile.
// Loading gives each owner both together, too. Loading is no step of the optimizer: its state is what the
// file says. Rows of a ShardedEmbedding have files of their own (its save()).
//
// Errors of save: those of write_tensor_file(), and the owners'. Of load: those of read_tensor_file();
// `invalid_argument` where the file is of other modules, or of another optimizer. The modules that did not
// refuse are loaded then, parameters and optimizer's state; those that did are as before.
#pragma once

#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_optim/distributed_optimizer.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace weft::dist_optim {

// What the program itself must know to go on, as text: its step, its seed. Names that begin with "weft." are
// refused.
using Notes = std::map<std::string, std::string>;
using Modules = std::vector<dist_autograd::RemoteModule>;

// The handle must live until the future completes; its modules need not be those that are saved.
WEFT_EXPORT rpc::Future<void> save(std::filesystem::path path, Modules modules,
                                   DistributedOptimizer& optimizer, Notes notes = {});
WEFT_EXPORT rpc::Future<void> save(std::filesystem::path path, Modules modules, Notes notes = {});

WEFT_EXPORT rpc::Future<Notes> load(std::filesystem::path path, Modules modules,
                                    DistributedOptimizer& optimizer);
WEFT_EXPORT rpc::Future<Notes> load(std::filesystem::path path, Modules modules);

}  // namespace weft::dist_optim
