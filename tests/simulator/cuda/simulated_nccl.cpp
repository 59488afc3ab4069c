#include "simulator/cuda/simulated_nccl.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "simulator/cuda/nccl_world.h"

namespace fsdp::testing::sim {

using nccl::Comm;
using nccl::Result;

struct SimulatedNccl::State {
  struct Scripted {
    NcclFault fault;
    int64_t at = 0;  // number of the counted call that fails
  };
  NcclWorld world;
  std::deque<Scripted> faults{};  // a deque, because its addresses are stable
  std::map<std::string, std::map<int, int64_t>, std::less<>> calls{};  // by name and device
  bool lets_go = false;

  int64_t count(std::string_view name, std::optional<int> device) const {
    const auto found = calls.find(name);
    int64_t count = 0;
    if (found == calls.end()) return 0;
    for (const auto& [of, calls_of] : found->second) {
      if (!device || of == *device) count += calls_of;
    }
    return count;
  }
  // Returns the fault for the call that was just counted, or null.
  const NcclFault* wrong_now(std::string_view name, int device) const {
    for (const auto& [fault, at] : faults) {
      if (fault.name == name && (!fault.device || *fault.device == device) &&
          count(name, fault.device) == at) {
        return &fault;
      }
    }
    return nullptr;
  }
};

namespace {

SimulatedNccl::State*& current() {
  static SimulatedNccl::State* state = nullptr;
  return state;
}

// The calls that the calling thread has made since ncclGroupStart.
struct Group {
  int depth = 0;
  std::vector<std::pair<Comm*, NcclRequest>> requests;
  std::vector<Comm*> aborted;
};
Group& group() {
  static thread_local Group of_thread;
  return of_thread;
}

// Counts the call, applies the script, and runs the body.
Result call(std::string_view name, const std::function<Result(NcclWorld&)>& body) {
  const std::lock_guard lock(runtime_mutex());
  SimulatedNccl::State* const state = current();
  if (state == nullptr) return Result::kInternalError;
  NcclWorld& world = state->world;
  ++state->calls[std::string(name)][world.device()];
  const NcclFault* const fault = state->wrong_now(name, world.device());
  if (fault != nullptr && fault->wrong != NcclWrong::kStaysInProgress) {
    // The thread counts as inside the call, so that an abort during the wait becomes a report.
    const NcclWorld::Inside inside(world);
    while (fault->wrong == NcclWrong::kHangs && !state->lets_go) world.wait();
  }
  const bool goes = name == "ncclCommAbort" || name == "ncclCommDestroy";  // works even if it fails
  if (fault != nullptr && fault->wrong != NcclWrong::kStaysInProgress && !goes) {
    return fault->result;
  }
  try {
    const Result result = body(world);
    if (fault == nullptr) return result;
    if (goes) return fault->result;
    // In case of kStaysInProgress, the operation has begun but never ends.
    world.stop_last();
    return result;
  } catch (const Misuse& misuse) {
    world.report(std::string(name) + ": " + misuse.what());
  } catch (const Refusal& refusal) {  // from the simulated CUDA runtime
    world.report(std::string(name) + ": " + refusal.what());
  }
  return Result::kInvalidUsage;
}

Result get_version(int* version) {
  const std::lock_guard lock(runtime_mutex());
  *version = current() == nullptr ? 0 : current()->world.registrations().version;
  return Result::kSuccess;
}

Result get_unique_id(nccl::UniqueId* id) {
  return call("ncclGetUniqueId", [&](NcclWorld& world) {
    const uint64_t number = world.next_id();
    *id = {};
    std::memcpy(id->internal.data(), &number, sizeof number);
    return Result::kSuccess;
  });
}

Result comm_init_rank_config(Comm** comm, int ranks, nccl::UniqueId id, int rank,
                             nccl::Config* config) {
  return call("ncclCommInitRankConfig", [&](NcclWorld& world) {
    if (config == nullptr || config->blocking != 0) throw Misuse("a communicator that blocks");
    uint64_t number = 0;
    std::memcpy(&number, id.internal.data(), sizeof number);
    *comm = world.join(ranks, number, rank);
    return Result::kInProgress;
  });
}

Result comm_split(Comm* comm, int color, int key, Comm** made, nccl::Config* config) {
  return call("ncclCommSplit", [&](NcclWorld& world) {
    if (config == nullptr || config->blocking != 0) throw Misuse("a communicator that blocks");
    world.split(world.usable(comm), color, key, made);
    const bool says_policy = config->size > offsetof(nccl::Config, cta_policy);
    if (says_policy && config->cta_policy == nccl::kCtaPolicyZero) world.count_zero_cta();
    return Result::kInProgress;
  });
}

Result comm_finalize(Comm* comm) {
  return call("ncclCommFinalize", [&](NcclWorld& world) {
    world.finalize(world.usable(comm));
    return Result::kInProgress;
  });
}

Result comm_destroy(Comm* comm) {
  return call("ncclCommDestroy", [&](NcclWorld& world) {
    world.destroy(world.usable(comm));
    return Result::kSuccess;
  });
}

Result comm_abort(Comm* comm) {
  return call("ncclCommAbort", [&](NcclWorld& world) {
    world.abort(world.usable(comm));
    // In a group, an abort must not wait until the group's other aborts are made, because a peer
    // may need the next abort to make progress.
    group().depth > 0 ? group().aborted.push_back(comm) : world.wait_for_streams(*comm);
    return Result::kSuccess;
  });
}

Result comm_get_async_error(Comm* comm, Result* result) {
  return call("ncclCommGetAsyncError", [&](NcclWorld& world) {
    *result = world.ask(world.usable(comm));
    return Result::kSuccess;
  });
}

const char* get_error_string(Result result) {
  static constexpr std::array kTexts{"no error",       "unhandled cuda error", "system error",
                                     "internal error", "invalid argument",     "invalid usage",
                                     "remote error",   "in progress",          "timeout"};
  return kTexts[static_cast<size_t>(result)];
}

const char* get_last_error(Comm* /*comm*/) { return "of the simulated NCCL"; }

Result group_start() {
  return call("ncclGroupStart", [](NcclWorld&) {
    ++group().depth;
    return Result::kSuccess;
  });
}

Result group_end() {
  return call("ncclGroupEnd", [](NcclWorld& world) {
    if (group().depth == 0) throw Misuse("no group was begun");
    if (--group().depth > 0) return Result::kSuccess;
    const auto calls = std::exchange(group().requests, {});
    for (const Comm* comm : std::exchange(group().aborted, {})) world.wait_for_streams(*comm);
    // A group may contain only aborts. Then it posts no collective.
    if (calls.empty()) return Result::kSuccess;
    std::vector<NcclRequest> requests;
    for (const auto& [comm, request] : calls) {
      if (comm != calls.front().first) throw Misuse("two communicators in one group");
      requests.push_back(request);
    }
    world.post(world.usable(calls.front().first), std::move(requests));
    return Result::kInProgress;
  });
}

Result add(const char* name, Comm* comm, const NcclRequest& request) {
  return call(name, [&](NcclWorld& world) {
    world.usable(comm);
    if (group().depth == 0) throw Misuse("a collective outside of a group");
    if (request.count == 0) throw Misuse("a collective of no elements");
    group().requests.emplace_back(comm, request);
    return Result::kSuccess;
  });
}

Result all_gather(const void* send, void* recv, size_t count, nccl::DataType type, Comm* comm,
                  void* stream) {
  return add("ncclAllGather", comm,
             {.kind = fsdp::Operation::kAllGather,
              .send = send,
              .recv = recv,
              .count = static_cast<int64_t>(count),
              .type = type,
              .stream = static_cast<cudaStream_t>(stream)});
}

Result reduce_scatter(const void* send, void* recv, size_t count, nccl::DataType type,
                      nccl::RedOp op, Comm* comm, void* stream) {
  return add("ncclReduceScatter", comm,
             {.kind = fsdp::Operation::kReduceScatter,
              .send = send,
              .recv = recv,
              .count = static_cast<int64_t>(count),
              .type = type,
              .op = op,
              .stream = static_cast<cudaStream_t>(stream)});
}

Result all_reduce(const void* send, void* recv, size_t count, nccl::DataType type, nccl::RedOp op,
                  Comm* comm, void* stream) {
  return add("ncclAllReduce", comm,
             {.kind = fsdp::Operation::kAllReduce,
              .send = send,
              .recv = recv,
              .count = static_cast<int64_t>(count),
              .type = type,
              .op = op,
              .stream = static_cast<cudaStream_t>(stream)});
}

Result broadcast(const void* send, void* recv, size_t count, nccl::DataType type, int root,
                 Comm* comm, void* stream) {
  return add("ncclBroadcast", comm,
             {.kind = fsdp::Operation::kBroadcast,
              .send = send,
              .recv = recv,
              .count = static_cast<int64_t>(count),
              .type = type,
              .root = root,
              .stream = static_cast<cudaStream_t>(stream)});
}

Result mem_alloc(void** memory, size_t bytes) {
  return call("ncclMemAlloc", [&](NcclWorld& world) {
    *memory = world.registrations().allocate(static_cast<int64_t>(bytes));
    return *memory == nullptr ? Result::kUnhandledCudaError : Result::kSuccess;
  });
}

Result mem_free(void* memory) {
  return call("ncclMemFree", [&](NcclWorld& world) {
    world.registrations().free(memory);
    return Result::kSuccess;
  });
}

Result comm_window_register(Comm* comm, void* memory, size_t bytes, nccl::Window** window,
                            int flags) {
  return call("ncclCommWindowRegister", [&](NcclWorld& world) {
    if (flags != nccl::kSymmetricWindow) throw Misuse("a window that is not symmetric");
    world.registrations().begin(world.usable(comm), memory, static_cast<int64_t>(bytes), window);
    return Result::kInProgress;
  });
}

Result comm_window_deregister(Comm* comm, nccl::Window* window) {
  return call("ncclCommWindowDeregister", [&](NcclWorld& world) {
    world.registrations().end(world.usable(comm), window);
    return Result::kSuccess;
  });
}

constexpr nccl::Library kLibrary{.get_version = get_version,
                                 .get_unique_id = get_unique_id,
                                 .comm_init_rank_config = comm_init_rank_config,
                                 .comm_split = comm_split,
                                 .comm_finalize = comm_finalize,
                                 .comm_destroy = comm_destroy,
                                 .comm_abort = comm_abort,
                                 .comm_get_async_error = comm_get_async_error,
                                 .get_error_string = get_error_string,
                                 .get_last_error = get_last_error,
                                 .group_start = group_start,
                                 .group_end = group_end,
                                 .all_gather = all_gather,
                                 .reduce_scatter = reduce_scatter,
                                 .all_reduce = all_reduce,
                                 .broadcast = broadcast,
                                 .mem_alloc = mem_alloc,
                                 .mem_free = mem_free,
                                 .comm_window_register = comm_window_register,
                                 .comm_window_deregister = comm_window_deregister};

}  // namespace

SimulatedNccl::SimulatedNccl(SimulatedGpu& gpu, uint32_t seed, int most_questions)
    : state_(new State{.world = NcclWorld(gpu.simulation(), seed, most_questions)}) {
  const std::lock_guard lock(runtime_mutex());
  current() = state_.get();
  gpu.simulation().watch_peers([this](int device) { return state_->world.waits_for(device); });
}

SimulatedNccl::~SimulatedNccl() {
  const std::lock_guard lock(runtime_mutex());
  for (const std::string& left : state_->world.left()) {
    state_->world.report(left + " was not left");
  }
  current() = nullptr;
  current_simulation()->watch_peers({});
}

const nccl::Library& SimulatedNccl::library() const { return kLibrary; }

void SimulatedNccl::script(const NcclFault& fault) {
  const std::lock_guard lock(runtime_mutex());
  state_->faults.push_back(
      {.fault = fault, .at = state_->count(fault.name, fault.device) + fault.n});
}

void SimulatedNccl::let_go() {
  const std::lock_guard lock(runtime_mutex());
  state_->lets_go = true;
  state_->world.wake();
}

void SimulatedNccl::break_communicator(int n, int rank, Result result) {
  const std::lock_guard lock(runtime_mutex());
  state_->world.break_communicator(n, rank, result);
}

void SimulatedNccl::hang_collectives() {
  const std::lock_guard lock(runtime_mutex());
  state_->world.hang_collectives();
}

void SimulatedNccl::set_version(int version) {
  const std::lock_guard lock(runtime_mutex());
  state_->world.registrations().version = version;
}

int64_t SimulatedNccl::half_registered() const {
  const std::lock_guard lock(runtime_mutex());
  return state_->world.registrations().half_registered;
}

int SimulatedNccl::zero_cta_communicators() const {
  const std::lock_guard lock(runtime_mutex());
  return state_->world.zero_cta();
}

int64_t SimulatedNccl::calls(std::string_view name, std::optional<int> device) const {
  const std::lock_guard lock(runtime_mutex());
  return state_->count(name, device);
}

}  // namespace fsdp::testing::sim
