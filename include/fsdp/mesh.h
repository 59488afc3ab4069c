// A mesh: the ranks of a job, how they are arranged, and how they communicate.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh_values.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

class MeshState;

// Axes of the ranks, which form `replicate` groups of `shard` neighbours: rank r is number r %
// shard of group r / shard. With one group the shard axis is the world.
enum class Axis : uint8_t {
  kWorld,      // all ranks
  kShard,      // the ranks of one group, usually of one host
  kReplicate,  // the ranks with the same number in all groups
};

// A rank for which a collective has waited longer than a third of the time-out.
struct SlowRank {
  int rank = 0;
  std::chrono::milliseconds waited{0};
  std::string collective;  // "all_gather of 4096 float32 'layers.0' #12"
};

// A message of a mesh to its program (MeshOptions::on_event).
struct MeshEvent {
  enum class Kind : uint8_t {
    // An engine noticed something and continues. Each warning is reported once, on the rank's own
    // thread.
    kWarning,
    // A rank is slow, and the wait for it continues. Reported once per job, by the first rank that
    // notices; with several hosts once by each waiting rank. The thread is the waiting one or one
    // that watches.
    kSlowRank,
    // A call of this rank's GPU, or of the connection between GPUs, has not returned within the
    // time-out. The other ranks have been notified. No exception can reach the thread in that call,
    // so the process ends with `code` when the listener returns, unless the listener ends it. The
    // thread is one of the mesh.
    kStuck,
  };
  Kind kind = Kind::kWarning;
  ErrorText text;                 // printed by warning_line or error_line
  SlowRank slow{};                // kSlowRank only
  ExitCode code = ExitCode::kOk;  // kStuck only
};

// Selects the device on which ranks compute.
enum class DeviceKind : uint8_t {
  kAuto,  // GPUs if ranks can use some, else the CPU; rank 0 then warns with the reason
  kCpu,
  kCuda,
};

struct MeshOptions {
  // Processes have one GPU each, chosen by LOCAL_RANK (or the only visible one), and communicate by
  // NCCL. Threads share the first visible GPU. If kCuda is set and a rank has no GPU, making the
  // mesh throws InvalidArgument (78) with the reason.
  DeviceKind device = DeviceKind::kCpu;
  // Number of ranks of a group, and number of groups; strategies such as kHybridShard shard within
  // a group. 0: derived from the other one; both 0: each host is a group.
  int shard = 0;
  int replicate = 0;
  // Time that a collective waits for a rank before it throws and names that rank.
  std::chrono::milliseconds timeout{30'000};
  // Factor on `timeout` for making a communicator between GPUs and for each of its first two
  // collectives, in which NCCL connects the ranks and LibTorch loads kernels. At least 1.
  int first_use = 10;
  // Receives the mesh's events. Must not throw. If it is empty, run_program prints a line for each
  // event; after kStuck the process ends, in other programs too.
  std::function<void(const MeshEvent& event)> on_event{};
};

// Arrangement of the ranks of a part, as in MeshOptions. 0: derived from the other one; both 0:
// each host is a group.
struct PartOptions {
  int shard = 0;
  int replicate = 0;
};

// A handle of one rank in a job. Copies share its state and stand for the same rank. When the last
// copy is destroyed, the rank has finished: ranks that still need it get an error that says so. If
// an exception destroys the last copy, the other ranks learn that this rank gave up.
class Mesh {
 public:
  // Makes the mesh from the launcher's environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
  // (fsdp-run, torchrun), else the variables of mpirun, PMI or srun; without any it has one rank.
  // Ranks of one host connect through shared memory, without a port. Call it once per process,
  // before long work.
  // Effects: blocks until all ranks have arrived and agree on build and world.
  // Errors: InvalidArgument (78) that names the variable, its value and the remedy, or axes whose
  //   sizes do not multiply to the world size; CommError (78) on all ranks if builds, worlds or
  //   axes differ, two processes have one rank, or a rank is missing (it is named).
  static Mesh from_env(MeshOptions options = {});
  // Returns a mesh of one rank, without communication.
  static Mesh single();
  // Returns the meshes of `world_size` thread ranks of this process; element r is for the thread of
  // rank r.
  static std::vector<Mesh> local(int world_size, MeshOptions options = {});

  // Splits the mesh as MPI_Comm_split does: ranks with equal `color` form a mesh, numbered in their
  // order here, with its own engines. Stages of a pipeline are such parts; a part can be split
  // again.
  //
  //   const Mesh stage = mesh.part(mesh.rank() / ranks_of_a_stage);
  //   Engine engine(model_of(stage), stage, options);
  //
  // All parts belong to the job: the first failure of any rank ends all of them, and errors name
  // ranks by their number in the job. Different parts may run different collectives; this mesh
  // stays usable between them. All engines of a rank share one memory limit.
  // Requires: collective over this mesh, before engines are made on it.
  // Effects: blocks until all ranks have called. The part keeps this mesh alive. A rank that
  //   destroys its part stays in the job.
  // Errors, on all ranks: InvalidArgument for a negative color, and for ranks of one color whose
  //   options differ or do not fit their number; StateError if this mesh has engines; DeviceError
  //   if a rank would be in more than 8 meshes, counting its destroyed parts.
  Mesh part(int color, PartOptions options = {}) const;

  int rank() const;
  int world_size() const;
  // Returns this rank's number in the job, which errors use; it equals rank() unless the mesh is a
  // part.
  int job_rank() const;
  int local_rank() const;
  const std::string& host() const;
  int size(Axis axis) const;
  // Returns this rank's number among the ranks of the axis.
  int rank(Axis axis) const;

  // Compares `lines` over all ranks, line by line; for handshakes at start-up. `what` names them in
  // the error ("model", "configuration"). Collective.
  // Errors: CommError (78) on all ranks if they differ, with the first difference, both values and
  //   both ranks.
  void agree(std::string_view what, const std::vector<std::string>& lines) const;

  // Returns the texts of all ranks, in rank order; lengths may differ. Collective; outside steps.
  std::vector<std::string> exchange(std::string_view what, std::string_view text) const;

  // Returns the sum of the ranks' values: losses for the log, counts, peaks.
  //
  //   const double mean_loss = mesh.mean(loss);
  //   const auto [mean_loss, mean_accuracy] = mesh.mean(std::array{loss, accuracy});
  //
  // A value is a number, or a tensor of one element (read as by item(), which waits for the
  // device). A std::array or std::vector of values needs one collective and returns as many
  // results. Integers are summed exactly and stay int64_t; other numbers and tensors become double.
  // Sums are formed in rank order, so all ranks get the same bits.
  // Requires: collective; outside forward and backward; all ranks call in the same order with an
  //   equal `label` (shown in errors and traces) and equally many values of one kind.
  // Errors: CommError as in any collective, with both labels or counts; InvalidArgument for a
  //   tensor that has not one element and for an integer beyond int64_t, and on all ranks for a
  //   sum of integers beyond int64_t.
  template <class Value>
  auto sum(const Value& value, std::string_view label = "sum") const {
    return over_ranks(value, Fold::kSum, label);
  }
  // Returns the sum divided by the number of ranks, in double.
  template <class Value>
  auto mean(const Value& value, std::string_view label = "mean") const {
    const double ranks = world_size();
    return mesh_detail::each(sum(value, label), [ranks](auto sum) { return sum / ranks; });
  }
  // Returns sum(value · weight) / sum(weight). A rank of weight 0 is ignored, also if its value is
  // NaN (the mean loss of a rank whose labels are all ignored). NaN if all weights are 0.
  //   mesh.mean(loss, (labels != -100).sum())
  // Errors: as sum; InvalidArgument for a weight that is negative or not finite.
  template <class Value, mesh_detail::Weight Weight>
  auto mean(const Value& value, const Weight& weight, std::string_view label = "mean") const {
    const double own = mesh_detail::weight(weight, label);
    auto sums = mesh_detail::each(value, [&](const auto& each) {
      return own == 0 ? 0.0 : own * static_cast<double>(mesh_detail::number(each, label));
    });
    fold(mesh_detail::span_of(sums), Fold::kSum, label);
    double weights = own;
    fold(std::span<double>(&weights, 1), Fold::kSum, label);
    return mesh_detail::each(sums, [weights](double sum) { return sum / weights; });
  }
  // Returns the largest value; NaN if any rank's is NaN.
  template <class Value>
  auto max(const Value& value, std::string_view label = "maximum") const {
    return over_ranks(value, Fold::kMax, label);
  }

  // Returns the `values` of every rank, in rank order. Requires and throws as sum. exchange is for
  // texts.
  std::vector<float> gather(std::span<const float> values, std::string_view label = "values") const;
  std::vector<double> gather(std::span<const double> values,
                             std::string_view label = "values") const;
  std::vector<int64_t> gather(std::span<const int64_t> values,
                              std::string_view label = "values") const;

  // Passes a warning to MeshOptions::on_event.
  void warn(const ErrorText& warning) const;

  // Notifies every other rank that this one gives up, with the cause (the first one wins), so that
  // they stop within seconds. Programs call it when they end after a failure. Never throws.
  void abort(std::string_view cause) const noexcept;

 private:
  friend struct MeshAccess;  // internal: src/comm/mesh_state.h
  explicit Mesh(std::shared_ptr<MeshState> state) : state_(std::move(state)) {}

  enum class Fold : uint8_t { kSum, kMax };
  void fold(std::span<double> values, Fold how, std::string_view label) const;  // in place
  void fold(std::span<int64_t> values, Fold how, std::string_view label) const;
  template <class Value>
  auto over_ranks(const Value& value, Fold how, std::string_view label) const {
    auto numbers = mesh_detail::each(
        value, [&](const auto& each) { return mesh_detail::number(each, label); });
    fold(mesh_detail::span_of(numbers), how, label);
    return numbers;
  }

  std::shared_ptr<MeshState> state_;  // shared by the copies of one rank's mesh
};

}  // namespace fsdp
