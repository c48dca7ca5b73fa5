// The functions of FakeNccl as a table of NCCL functions in weft. Only fake_nccl.h includes this file.
#pragma once

namespace weft::test {

inline std::shared_ptr<const FakeNccl::Api> FakeNccl::api() {
  using collectives::nccl::Config;
  using collectives::nccl::RedOp;
  using Kind = FakeOp::Kind;
  auto table = std::make_shared<Api>();
  Api& api = *table;
  api.version = 23007;

  api.get_unique_id = [this](UniqueId* id) {
    std::lock_guard lock(mutex_);
    std::snprintf(id->bytes.data(), id->bytes.size(), "fake %d", ++ids_);
    return Result::success;
  };
  api.comm_init_rank_config = [this](Comm** made, int ranks, UniqueId id, int rank, Config* config) {
    std::lock_guard lock(mutex_);
    if (config->blocking != 0) note("a blocking communicator");
    if (faults_[rank].init != Result::success) return faults_[rank].init;
    auto& clique = forming_[id.bytes.data()];
    if (clique == nullptr) clique = clique_of(static_cast<std::size_t>(ranks));
    Comm* const comm = add(clique, rank);
    if (faults_[rank].late_handle) {
      clique->late.emplace_back(made, comm);
    } else {
      *made = comm;
    }
    if (clique->complete()) {
      for (Comm* one : clique->members) one->settling = faults_[one->rank].init_hangs;
      for (const auto& [slot, late] : clique->late)
        std::atomic_ref<Comm*>(*slot).store(late, std::memory_order_release);
      forming_.erase(id.bytes.data());
    }
    return Result::in_progress;
  };
  api.comm_finalize = [this](Comm* comm) {
    return within(comm, "finalize", [&] {
      comm->settling = comm->finalized = true;
      const auto& all = comm->clique->members;
      if (std::all_of(all.begin(), all.end(), [](const Comm* one) { return one->finalized; }))
        for (Comm* one : all) one->settling = faults_[one->rank].never_closes;
      return Result::in_progress;
    });
  };
  api.comm_destroy = [this](Comm* comm) {
    return within(comm, "destroy", [&] {
      if (!comm->finalized || comm->settling) note("destroy before it was finalized");
      comm->dead = true;
      return Result::success;
    });
  };
  api.comm_abort = [this](Comm* comm) {
    return within(comm, "abort", [&] {
      if (comm->depth > 1) note("abort of a communicator with calls in an open group");
      Group& group = groups_[std::this_thread::get_id()];
      if (group.depth == 0) {
        aborts_.push_back({comm->rank});
      } else {
        group.aborted.push_back(comm->rank);
      }
      comm->dead = true;
      for (const auto& work : comm->works) work->ended = true;
      comm->clique->forget(comm);
      return Result::success;
    });
  };
  api.comm_get_async_error = [this](Comm* comm, Result* state) {
    return within(comm, "get_async_error", [&] {
      *state = comm->error;
      if (comm->error == Result::success && (comm->settling || comm->polls > 0)) {
        if (!comm->settling) --comm->polls;
        *state = Result::in_progress;
      }
      return Result::success;
    });
  };
  api.get_error_string = [](Result result) {
    switch (result) {
      case Result::remote_error:
        return "remote process exited or there was a network error";
      case Result::system_error:
        return "unhandled system error";
      default:
        return "some error";
    }
  };
  api.get_last_error = [this](Comm*) { return last_error.c_str(); };

  api.group_start = [this] {
    std::lock_guard lock(mutex_);
    ++groups_[std::this_thread::get_id()].depth;
    return Result::success;
  };
  api.group_end = [this] { return end_group(); };
  const auto put = [this](FakeOp op) {
    std::lock_guard lock(mutex_);
    if (!enter(op.comm, "an operation")) return Result::invalid_usage;
    if (const auto found = op.comm->factors.find(op.op); found != op.comm->factors.end()) {
      op.factor = found->second;
      op.op = 0;
    }
    Group& group = groups_[std::this_thread::get_id()];
    if (group.depth == 0) note("an operation outside a group");
    group.ops.push_back(std::move(op));
    return Result::success;
  };
  api.all_reduce = [put](const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                         Stream stream) {
    return put({Kind::all_reduce, in, out, count, type, static_cast<int>(op), 0, comm, stream});
  };
  api.reduce = [put](const void* in, void* out, std::size_t count, DataType type, RedOp op, int root,
                     Comm* comm, Stream stream) {
    return put({Kind::reduce, in, out, count, type, static_cast<int>(op), root, comm, stream});
  };
  api.broadcast = [put](const void* in, void* out, std::size_t count, DataType type, int root, Comm* comm,
                        Stream stream) {
    return put({Kind::broadcast, in, out, count, type, 0, root, comm, stream});
  };
  api.all_gather = [put](const void* in, void* out, std::size_t count, DataType type, Comm* comm,
                         Stream stream) {
    return put({Kind::all_gather, in, out, count, type, 0, 0, comm, stream});
  };
  api.reduce_scatter = [put](const void* in, void* out, std::size_t count, DataType type, RedOp op,
                             Comm* comm, Stream stream) {
    return put({Kind::reduce_scatter, in, out, count, type, static_cast<int>(op), 0, comm, stream});
  };
  api.send = [put](const void* in, std::size_t count, DataType type, int peer, Comm* comm, Stream stream) {
    return put({Kind::send, in, nullptr, count, type, 0, peer, comm, stream});
  };
  api.recv = [put](void* out, std::size_t count, DataType type, int peer, Comm* comm, Stream stream) {
    return put({Kind::recv, nullptr, out, count, type, 0, peer, comm, stream});
  };
  api.red_op_create_premul_sum = [this](RedOp* op, void* factor, DataType type, collectives::nccl::Residence,
                                        Comm* comm) {
    return within(comm, "premul_sum", [&] {
      double value = 0;
      if (type == DataType::float64) {
        std::memcpy(&value, factor, sizeof value);
      } else if (type == DataType::float32) {
        float narrow = 0;
        std::memcpy(&narrow, factor, sizeof narrow);
        value = static_cast<double>(narrow);
      } else {
        return Result::invalid_argument;
      }
      ++operators_;
      comm->factors[next_operator_] = value;
      *op = static_cast<RedOp>(next_operator_++);
      return Result::success;
    });
  };
  api.red_op_destroy = [this](RedOp op, Comm* comm) {
    return within(comm, "red_op_destroy", [&] {
      operators_ -= static_cast<int>(comm->factors.erase(static_cast<int>(op)));
      return Result::success;
    });
  };
  return table;
}

}  // namespace weft::test
