// A mesh: the ranks of a job, their arrangement, and their communication.
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

// Axes of the mesh. The ranks form `replicate` groups of `shard` neighbouring ranks: rank r has the
// number r % shard in group r / shard. If there is only one group, the shard axis contains all
// ranks.
enum class Axis : uint8_t {
  kWorld,      // all ranks
  kShard,      // the ranks of one group, usually of one host
  kReplicate,  // the ranks that have the same number in their groups, one per group
};

// A report of a slow rank: a collective has waited for this rank for more than a third of the
// time-out.
struct SlowRank {
  int rank = 0;
  std::chrono::milliseconds waited{0};
  std::string collective;  // for example "all_gather of 4096 float32 'layers.0' #12"
};

// A message from a mesh to its program (MeshOptions::on_event).
struct MeshEvent {
  enum class Kind : uint8_t {
    // An engine noticed a problem and continues. Each warning is reported once. on_event is called
    // on the rank's own thread.
    kWarning,
    // A note about normal operation, for example the checkpoint from which a run resumes. on_event
    // is called on the rank's own thread.
    kNote,
    // A rank is slow, and the wait for it continues. On one host, only the first rank that notices
    // the slow rank reports it, once per job. On several hosts, each waiting rank reports it once.
    // on_event is called on the waiting thread or on a watching thread of the mesh.
    kSlowRank,
    // A call to this rank's GPU, or to the connection between GPUs, has not returned within the
    // time-out. The other ranks have been notified. No exception can reach the thread that is
    // inside the call. Therefore the process ends with `code` when on_event returns, unless
    // on_event ends the process itself. on_event is called on a thread of the mesh.
    kStuck,
  };
  Kind kind = Kind::kWarning;
  ErrorText text;                 // printed by warning_line, note_line or error_line
  SlowRank slow{};                // kSlowRank only
  ExitCode code = ExitCode::kOk;  // kStuck only
};

// Selects the device on which ranks compute.
enum class DeviceKind : uint8_t {
  kAuto,  // GPUs if ranks can use them; else the CPU, and rank 0 warns with the reason
  kCpu,
  kCuda,
};

struct MeshOptions {
  // With GPUs, each process uses one GPU: the GPU with the number LOCAL_RANK, or the only visible
  // GPU. Processes communicate by NCCL. Thread ranks share the first visible GPU. If kCuda is set
  // and a rank has no GPU, making the mesh throws InvalidArgument (78) with the reason.
  DeviceKind device = DeviceKind::kCpu;
  // shard: number of ranks per group. replicate: number of groups. Strategies such as kHybridShard
  // shard within a group. If one of the two numbers is 0, it is derived from the other one. If both
  // are 0, each host is a group.
  int shard = 0;
  int replicate = 0;
  // Time-out of a collective. If a rank does not arrive in time, the collective throws and names
  // this rank.
  std::chrono::milliseconds timeout{30'000};
  // Creating a communicator between GPUs, and each of its first two collectives, may take first_use
  // · timeout, because NCCL then connects the ranks and LibTorch loads kernels. Must be at least 1.
  int first_use = 10;
  // Receives the mesh's events. The function must not throw. If it is unset, run_program prints a
  // line for each event. After a kStuck event the process always ends, even if the program does not
  // use run_program.
  std::function<void(const MeshEvent& event)> on_event{};
};

// Arrangement of the ranks of a part. The fields mean the same as in MeshOptions: if one field is
// 0, it is derived from the other one; if both are 0, each host is a group.
struct PartOptions {
  int shard = 0;
  int replicate = 0;
};

// A handle of one rank in a job. Copies of a mesh share its state and represent the same rank. When
// the last copy is destroyed, the rank has finished. Ranks that still wait for this rank then get
// an error that says that this rank has left. If the last copy is destroyed because an exception is
// thrown, the other ranks are notified that this rank failed.
class Mesh {
 public:
  // Makes the mesh from the launcher's environment: RANK, WORLD_SIZE, LOCAL_RANK and
  // LOCAL_WORLD_SIZE (fsdp-run, torchrun); if these are not set, the variables of mpirun, PMI or
  // srun. Without any of these variables the mesh has one rank. Ranks on one host connect through
  // shared memory and need no port. Call this function once per process, before any long work.
  // Effects: blocks until all ranks have called this function and have compared their builds and
  //   world sizes.
  // Errors: InvalidArgument (78) that names the variable, its value and the remedy if a variable is
  //   invalid, or if shard · replicate is not the world size. CommError (78) on all ranks if
  //   builds, world sizes or axes differ between ranks, if two processes have the same rank, or if
  //   a rank is missing (the error names it).
  static Mesh from_env(MeshOptions options = {});
  // Returns a mesh of one rank, without communication.
  static Mesh single();
  // Returns the meshes of `world_size` thread ranks of this process. Element r must be used by the
  // thread of rank r.
  static std::vector<Mesh> local(int world_size, MeshOptions options = {});

  // Splits the mesh as MPI_Comm_split does. Ranks with equal `color` form a part, which is a new
  // mesh with its own engines. The order of the ranks is the same in the part as in this mesh. The
  // stages of a pipeline are an example of parts. A part can be split again.
  //
  //   const Mesh stage = mesh.part(mesh.rank() / ranks_of_a_stage);
  //   Engine engine(model_of(stage), stage, options);
  //
  // All parts belong to the same job. The first failure of a rank ends the job, with all parts.
  // Errors name a rank by its number in the job. Different parts may run different collectives.
  // Collectives of this mesh are still possible between the collectives of its parts. All engines
  // of a rank share one memory limit.
  // Requires: collective over this mesh, before any engine is made on it.
  // Effects: blocks until all ranks have called this function. The part keeps this mesh alive. A
  //   rank that destroys its part stays in the job.
  // Errors, on all ranks: InvalidArgument if a color is negative, if ranks with the same color have
  //   different options, or if shard · replicate is not the number of these ranks. StateError if
  //   this mesh has engines. DeviceError if a rank would be in more than 8 meshes (a fixed limit),
  //   including destroyed parts.
  Mesh part(int color, PartOptions options = {}) const;

  int rank() const;
  int world_size() const;
  // Returns this rank's number in the job. Errors use this number. It equals rank() unless this
  // mesh is a part.
  int job_rank() const;
  int local_rank() const;
  const std::string& host() const;
  int size(Axis axis) const;
  // Returns this rank's number among the ranks of the axis.
  int rank(Axis axis) const;

  // Checks that `lines` are equal on all ranks. Use this function at start-up to check that all
  // ranks have the same settings. `what` names the lines in errors ("model", "configuration").
  // Collective.
  // Errors: CommError (78) on all ranks if the lines differ. The error names the first difference,
  //   with both values and both ranks.
  void agree(std::string_view what, const std::vector<std::string>& lines) const;

  // Returns the texts of all ranks, in rank order. The texts may differ in length. Collective;
  // outside steps.
  std::vector<std::string> exchange(std::string_view what, std::string_view text) const;

  // Returns the sum of the ranks' values, for example losses for the log, counts or peaks.
  //
  //   const double mean_loss = mesh.mean(loss);
  //   const auto [mean_loss, mean_accuracy] = mesh.mean(std::array{loss, accuracy});
  //
  // A value is a number or a tensor of one element. A tensor is read by item(), which waits for the
  // device. A std::array or std::vector of values needs only one collective and returns the same
  // number of results. Integers are summed exactly and stay int64_t; other numbers and tensors
  // become double. Values are summed in rank order, so all ranks get the same bits.
  // Requires: collective; outside forward and backward. All ranks must make these calls in the same
  //   order, with an equal `label` (shown in errors and traces) and the same number and kind of
  //   values.
  // Errors: CommError as in any collective. If the labels or the counts of values differ between
  //   ranks, the error names both. InvalidArgument if a tensor does not have exactly one element,
  //   or if an integer does not fit int64_t. InvalidArgument on all ranks if the sum of integers
  //   does not fit int64_t.
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
  // Returns sum(value · weight) / sum(weight). A rank with weight 0 is ignored, even if its value
  // is NaN (for example the mean loss of a rank whose labels are all ignored). Returns NaN if all
  // weights are 0.
  //   mesh.mean(loss, (labels != -100).sum())
  // Errors: the same as those of sum. InvalidArgument if a weight is negative or not finite.
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
  // Returns the largest value. Returns NaN if any rank's value is NaN.
  template <class Value>
  auto max(const Value& value, std::string_view label = "maximum") const {
    return over_ranks(value, Fold::kMax, label);
  }

  // Returns the `values` of all ranks in one vector, in rank order. Requirements and errors are
  // those of sum. For texts, use exchange.
  std::vector<float> gather(std::span<const float> values, std::string_view label = "values") const;
  std::vector<double> gather(std::span<const double> values,
                             std::string_view label = "values") const;
  std::vector<int64_t> gather(std::span<const int64_t> values,
                              std::string_view label = "values") const;

  // Passes a warning to MeshOptions::on_event.
  void warn(const ErrorText& warning) const;
  // Passes a note about normal operation to MeshOptions::on_event, such as the checkpoint from
  // which a run resumes.
  void note(std::string text) const;

  // Notifies all other ranks that this rank fails with `cause`, so that they stop within seconds.
  // If several ranks call this function, the other ranks report the first cause. A program calls
  // this function when it ends after a failure. Never throws.
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
