#!/usr/bin/env python3
"""include_order.py finds each kind of fault, and accepts what is right."""
import sys

from include_order import problems_of, upward_declarations

WRONG = [
    ("rpc/wire/a.h", "#include <weft/rpc/codec/codec.h>", "comes before"),
    ("rpc/job/store/a.h", "#include <weft/rpc/job/membership/roster.h>", "comes before"),
    ("rpc/rpc.h", "#include <weft/rpc/job/store/store.h>", "comes before"),
    ("rpc/elsewhere/a.h", "#include <string>", "is missing"),
    ("rpc/call/a.h", "#include <weft/rpc/endpoint/link.h>", "comes before"),
    ("rpc/endpoint/a.h", "#include <weft/rpc/agent/agent.h>", "comes before"),
    ("rpc/agent/a.h", "#include <weft/rpc/balance/peer_set.h>", "comes before"),
    ("rpc/job/membership/a.h", "#include <weft/rpc/job/job.h>", "comes before"),
    ("rpc/core/a.h", "#include <weft/rref/rref.h>", "comes before"),
    ("rpc/core/a.h", "#include <weft/rpc/tensor/codec.h>", "comes before"),
    ("rpc/core/a.h", "#include <ATen/core/Tensor.h>", "without LibTorch"),
    ("rref/a.h", "#include <c10/util/intrusive_ptr.h>", "without LibTorch"),
    ("rref/a.h", "#include <weft/dist_autograd/pass.h>", "comes before"),
    ("rpc/tensor/a.h", "#include <weft/rref/rref.h>", "comes before"),
    ("parallel/collectives/a.h", "#include <weft/dist_optim/distributed_optimizer.h>", "comes before"),
    ("dist_optim/local/a.h", "#include <weft/dist_optim/service/owned_parameters_guard.h>", "comes before"),
    ("dist_optim/service/a.h", "#include <weft/dist_optim/lbfgs/owner.h>", "comes before"),
    ("dist_optim/service/a.h", "#include <weft/dist_optim/layers.h>", "comes before"),
    ("dist_optim/lbfgs/a.h", "#include <weft/dist_optim/dist_lbfgs.h>", "comes before"),
    ("dist_optim/a.h", "#include <weft/dist_optim/checkpoint/checkpoint.h>", "comes before"),
    ("dist_optim/a.h", "#include <weft/dist_optim/embedding/shard.h>", "comes before"),
    ("dist_optim/checkpoint/a.h", "#include <weft/dist_optim/embedding/shard.h>", "comes before"),
    ("parallel/data_parallel/a.h", "#include <weft/dist_optim/embedding/shard.h>", "comes before"),
    ("dist_optim/elsewhere/a.h", "#include <string>", "is missing"),
    ("parallel/collectives/internal/shm/a.h", "#include <weft/parallel/collectives/group.h>", "comes before"),
    ("parallel/collectives/nccl/a.cc", "#include <weft/parallel/collectives/internal/shm/shared_transfer.h>", "comes before"),
    ("parallel/collectives/plan/a.h", "#include <ATen/core/Tensor.h>", "without LibTorch"),
    ("rpc/agent/a.h", "#include <spdlog/spdlog.h>", "belongs into"),
    ("rpc/agent/a.h", "#include <civetweb.h>", "belongs into"),
    ("rpc/trace/a.cc", "#include <nlohmann/json.hpp>", "alone"),
    ("rpc/transport/a.h", "#include <curl/curl.h>", "alone"),
    ("rpc/wire/a.h", "#include <weft/rpc/wire/frame.capnp.h>", "is generated"),
    ("rpc/security/a.h", "#include <openssl/ssl.h>", "internal"),
    ("rpc/job/store/a.h", "#include <weft/rpc/job/store/internal/http_client.h>", "not installed"),
    ("dist_autograd/a.cc", "#include <torch/torch.h>", "12 s"),
    ("rpc/core/a.cc", '#include "rpc/core/b.h"', "included as"),
    ("rpc/core/error.cc", "#include <string>\n#include <weft/rpc/core/error.h>", "comes first"),
    ("rref/a.h", "#include <weft/elsewhere/b.h>", "in no layer"),
]
RIGHT = [
    ("rpc/agent/a.h", "#include <weft/rpc/transport/connection.h>"),
    ("rpc/rpc.h", "#include <weft/rpc/agent/agent.h>\n#include <weft/rpc/trace/tracer.h>"),
    ("rpc/job/store/a.h", "#include <weft/rpc/rpc.h>"),
    ("dist_optim/embedding/a.h", "#include <weft/parallel/weights/checked_file.h>\n#include <weft/dist_optim/layers.h>"),
    ("rpc/wire/a.cc", "#include <weft/rpc/wire/frame.capnp.h>"),
    ("rpc/wire/internal/a.h", "#include <weft/rpc/wire/frame.capnp.h>"),
    ("rpc/security/a.cc", "#include <openssl/ssl.h>"),
    ("rpc/job/store/a.cc", "#include <weft/rpc/job/store/internal/http_client.h>\n#include <nlohmann/json.hpp>"),
    ("rpc/job/store/internal/a.h", "#include <weft/rpc/job/store/internal/http_client.h>"),
    ("rpc/security/internal/a.h", "#include <openssl/ssl.h>"),
    ("rpc/agent/a.h", "#include <weft/rpc/core/error.h>\n#include <asio/io_context.hpp>"),
    ("dist_autograd/a.h", "#include <weft/rref/rref.h>\n#include <ATen/core/Tensor.h>"),
    ("tests/rref/a_test.cc", '#include "tests/support/cluster.h"\n#include <torch/torch.h>'),
]

failures = [f"{text!r} in {path}: expected '{fault}', found {found}" for path, text, fault in WRONG
            if len(found := list(problems_of(path, text))) != 1 or fault not in found[0]]
failures += [f"{text!r} in {path}: found {found}" for path, text in RIGHT if (found := list(problems_of(path, text)))]
ABOVE = {"rpc/endpoint/link.h": "class WEFT_EXPORT Link final : public Carrier {\n};", "rpc/call/a.h": "class Link;"}
BELOW = {"rpc/call/a.h": "class WEFT_EXPORT PendingCall {\n};", "rpc/endpoint/link.h": "class PendingCall;\nclass Unknown;"}
if len(found := list(upward_declarations(ABOVE))) != 1 or "declares Link" not in found[0]:
    failures.append(f"a declaration of what a higher folder defines: found {found}")
if found := list(upward_declarations(BELOW)):
    failures.append(f"a declaration of what a lower folder defines: found {found}")
print("\n".join(failures) or f"{len(WRONG)} faults found, {len(RIGHT)} right files accepted")
sys.exit(1 if failures else 0)
