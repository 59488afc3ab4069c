// The ranks of a job and how they reach each other.
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

// Ranks are arranged as `replicate` groups of `shard` neighbours each: rank r is number r % shard
// of group r / shard. With one group the shard axis is the world.
enum class Axis : uint8_t {
  kWorld,      // all ranks
  kShard,      // the ranks of one group: of a host, as a rule
  kReplicate,  // the ranks with the same number, one of each group
};

// A rank that a collective has waited for longer than a third of the time-out.
struct SlowRank {
  int rank = 0;
  std::chrono::milliseconds waited{0};
  std::string collective;  // "all_gather of 4096 float32 'layers.0' #12"
};

// A message of a mesh to its program.
struct MeshEvent {
  enum class Kind : uint8_t {
    // An engine has noticed something and goes on: once for each thing, in the rank's own thread.
    kWarning,
    // A rank is slow: once a job, on the rank that notices first (of ranks on several hosts: once
    // on each that waits for it). The wait goes on. In the thread that waits, or one that watches.
    kSlowRank,
    // A call of this rank's GPU, or of what connects GPUs, has not come back within the time-out:
    // no exception reaches the thread in it, so the listener has to end the process, with `code`.
    // The other ranks have been told. In a thread of the mesh's.
    kStuck,
  };
  Kind kind = Kind::kWarning;
  ErrorText text;                 // as warning_line or error_line print it
  SlowRank slow{};                // of kSlowRank
  ExitCode code = ExitCode::kOk;  // of kStuck
};

// What ranks compute on.
enum class DeviceKind : uint8_t {
  kAuto,  // GPUs where ranks can use some, else the CPU, with a warning on rank 0 that says why
  kCpu,
  kCuda,
};

struct MeshOptions {
  // kCuda where some rank has no GPU: making the mesh throws InvalidArgument (78) that says why.
  // Processes have a GPU each, that of their LOCAL_RANK (or the one that they see), and reach each
  // other by NCCL. Threads share one GPU, the first that the process sees, however many there are.
  DeviceKind device = DeviceKind::kCpu;
  // How many ranks a group has, and how many groups there are: Strategy::kHybridShard and those
  // like it cut within a group. 0: what the other one leaves; both 0: a group a host.
  int shard = 0;
  int replicate = 0;
  // How long a collective waits for a rank before it throws, naming that rank.
  std::chrono::milliseconds timeout{30'000};
  // How many times `timeout` a communicator between GPUs may take to be made, and each of its first
  // two collectives: NCCL connects the ranks then, and LibTorch loads kernels.
  int first_use = 10;
  // Hears of what a mesh has to tell. Must not throw. Empty: run_program prints a line for each
  // event, and ends the process after kStuck, as other programs then do as well.
  std::function<void(const MeshEvent& event)> on_event{};
};

// How the ranks of a part are arranged, as MeshOptions says it: 0: what the other one leaves; both
// 0: a group a host.
struct PartOptions {
  int shard = 0;
  int replicate = 0;
};

// Shared by value: copies speak for the same rank of the same job. When the last copy is gone this
// rank has finished; ranks that still need it get an error that says so. If an exception destroys
// it, the others are told that this rank gave up.
class Mesh {
 public:
  // The launcher's environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (fsdp-run,
  // torchrun), else mpirun's, PMI's or srun's; none set = one rank. Several ranks on one host meet
  // through shared memory, without a port. Make it first thing in a program, once a process.
  // Effects: blocks until all ranks have arrived and agree on build and world.
  // Errors: InvalidArgument (78) naming variable, value and remedy, or axes whose sizes do not
  //   multiply to the world's; CommError (78) on all ranks when their builds, worlds or axes
  //   differ, two have one rank, or a rank is missing, named.
  static Mesh from_env(MeshOptions options = {});
  // One rank that moves nothing.
  static Mesh single();
  // `world_size` ranks as threads of this process; element r belongs to the thread of rank r.
  static std::vector<Mesh> local(int world_size, MeshOptions options = {});

  // Splits the mesh, as MPI_Comm_split does: the ranks that give the same `color` become a mesh of
  // their own, numbered in their order here, with engines of its own. A pipeline's stages are such
  // parts; a part may be split again.
  //
  //   const Mesh stage = mesh.part(mesh.rank() / ranks_of_a_stage);
  //   Engine engine(model_of(stage), stage, options);
  //
  // A part belongs to the job: the first failure of any rank ends all parts, and errors name ranks
  // by their number in the job. Ranks of different parts do different things meanwhile; this mesh
  // stays usable between them. A memory limit is one for all engines of a rank.
  // Requires: collective over this mesh, before engines are made on it.
  // Effects: blocks until all ranks have come. The part keeps this mesh alive. A rank that lets its
  //   part go stays in the job.
  // Errors, on all ranks: InvalidArgument for a negative color, for ranks of one color whose
  //   options differ or do not fit their number; StateError while this mesh has engines;
  //   DeviceError where a rank would be of more than 8 meshes, its parts that are gone included.
  Mesh part(int color, PartOptions options = {}) const;

  int rank() const;
  int world_size() const;
  // This rank's number in the job, which error texts name: rank() unless the mesh is a part.
  int job_rank() const;
  int local_rank() const;
  const std::string& host() const;
  int size(Axis axis) const;
  // This rank's number among those of the axis.
  int rank(Axis axis) const;

  // Start-up handshake. Compares `lines` over all ranks, line by line.
  // Errors: CommError (78) on ALL ranks if they differ, with the first difference, both values and
  //   both ranks. `what` says what is compared ("model", "configuration").
  void agree(std::string_view what, const std::vector<std::string>& lines) const;

  // The texts of all ranks, in rank order, of any lengths. Collective, outside steps.
  std::vector<std::string> exchange(std::string_view what, std::string_view text) const;

  // What the ranks' values come to: losses for the log, counts, peaks.
  //
  //   const double mean_loss = mesh.mean(loss);
  //   const auto [mean_loss, mean_accuracy] = mesh.mean(std::array{loss, accuracy});
  //
  // A value is a number or a tensor of one element (which waits for the device, as item() does), or
  // a std::array or std::vector of these: several in one collective, and as many in return. Whole
  // numbers are exact and stay int64_t; all others, and tensors, become double. Sums are formed in
  // rank order, so that all ranks get the same bits.
  // Requires: collective, outside forward and backward, in one order and with equal `label`, which
  //   names the value in errors and traces; equally many, of one kind, on every rank.
  // Errors: CommError as any collective (communicator.h), which shows both labels or counts;
  //   InvalidArgument for a tensor of another number of elements, a number beyond int64_t, and, on
  //   all ranks, a sum of whole numbers beyond it.
  template <class Value>
  auto sum(const Value& value, std::string_view label = "sum") const {
    return over_ranks(value, Fold::kSum, label);
  }
  // The sum divided by the number of ranks; in double.
  template <class Value>
  auto mean(const Value& value, std::string_view label = "mean") const {
    const double ranks = world_size();
    return mesh_detail::each(sum(value, label), [ranks](auto sum) { return sum / ranks; });
  }
  // The sum of value · weight divided by the sum of the weights. A rank whose weight is 0 does not
  // count, whatever its value: the mean loss of a rank whose labels are all ignored is NaN. NaN if
  // no rank counts.
  //   mesh.mean(loss, (labels != -100).sum())
  // Errors: also InvalidArgument for a weight that is negative or not finite.
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
  // NaN if any rank's is.
  template <class Value>
  auto max(const Value& value, std::string_view label = "maximum") const {
    return over_ranks(value, Fold::kMax, label);
  }

  // Every rank's `values`, in rank order; requires and throws as sum. Of texts: exchange.
  std::vector<float> gather(std::span<const float> values, std::string_view label = "values") const;
  std::vector<double> gather(std::span<const double> values,
                             std::string_view label = "values") const;
  std::vector<int64_t> gather(std::span<const int64_t> values,
                              std::string_view label = "values") const;

  // Passes a warning to MeshOptions::on_event.
  void warn(const ErrorText& warning) const;

  // Tells every other rank that this one gives up and why (the first cause wins), so that they stop
  // within seconds. Programs call it on the way out of a failure. Never throws.
  void abort(std::string_view cause) const noexcept;

 private:
  friend struct MeshAccess;  // the library's own: src/comm/mesh_state.h
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
