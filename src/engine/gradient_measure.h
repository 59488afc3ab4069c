// GradientMeasure: the norm of a step's gradients, the factor that clips them, and the check that
// all of them are finite.
//
// All results are computed in device memory and are equal on every rank. Optimizers' kernels read
// the results through pointers. The host waits for them only when a GradientReport is read.
#pragma once

#include <fsdp/engine.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/chosen_parameters.h"
#include "engine/engine_unit.h"
#include "kernels/grad_norm.h"

namespace fsdp {

// The scalars of one step, in one block of the memory that also holds the main gradients.
class StepScalars {
 public:
  // `ranks` is the number of ranks over which the scalars are reduced. `rank` is this rank's number
  // among them.
  StepScalars(const ShardContext& context, int ranks, int rank);

  // A kernels::GradNorm, followed by one value per rank: the position of the rank's first
  // non-finite element (see kernels::grad_norm). A rank writes only its own value. All values are
  // float64, so one all_reduce reduces all of them.
  struct Found {
    double* values;
    kernels::GradNorm* norm() const { return reinterpret_cast<kernels::GradNorm*>(values); }
    double* first(int rank) const { return values + kHead + rank; }
  };
  // Returns the number of float64 values in a Found.
  int64_t numel() const { return kHead + ranks_; }
  Found here() const { return {at<double>(0)}; }
  // Returns the values reduced over all ranks. With one rank, these are the rank's own values.
  Found everywhere() const { return {ranks_ == 1 ? here().values : at<double>(found_bytes())}; }
  double* own_first() const { return here().first(rank_); }

  float* norm() const { return at<float>(2 * found_bytes()); }
  float* coefficient() const { return norm() + 1; }
  float* found_inf() const { return norm() + 2; }

  struct Values {
    float norm = 0;
    bool finite = true;
    std::vector<double> first;  // by rank
  };
  // Reads the values. Waits for all work issued to `stream` so far.
  Values read(Stream& stream) const;

 private:
  // The number of float64 values in a GradNorm.
  static constexpr int64_t kHead = sizeof(kernels::GradNorm) / sizeof(double);
  int64_t found_bytes() const { return numel() * static_cast<int64_t>(sizeof(double)); }
  template <class Type>
  Type* at(int64_t offset_bytes) const {
    return reinterpret_cast<Type*>(memory_.at(offset_bytes));
  }

  const int ranks_;
  const int rank_;
  const Buffer memory_;
};

// The measurements of an engine. Not thread-safe: the backward scheduler's mutex must be held.
class GradientMeasure {
 public:
  // Requires: both arguments outlive this object.
  GradientMeasure(ShardContext& context, const std::vector<std::shared_ptr<EngineUnit>>& units)
      : context_(context), units_(units) {}

  // A measurement: a report for the caller, and pointers for kernels.
  struct Measured {
    GradientReport report;
    std::shared_ptr<const StepScalars> scalars;  // held until the kernels that read them are issued
  };
  // Measures the gradients of `chosen`, in one all_reduce if main shards are cut. If several ranks
  // own the same slice, only the lowest of these ranks measures it. An infinite `max_norm` clips
  // nothing.
  // Errors: InvalidArgument if norm_type is not 1, 2 or infinity, or if max_norm is negative or
  //   NaN.
  Measured measure(double norm_type, double max_norm, const ChosenParameters& chosen);
  // Returns the scalars of a report, or null if the report has none or was read.
  static std::shared_ptr<const StepScalars> scalars_of(const GradientReport& report);
  // Reads the values of all reports now, because the units and the names of their parameters are
  // destroyed next.
  void settle() noexcept;

 private:
  friend struct GradientReport::Measurement;
  // Returns true if ranks own different main shards of some unit, so that sums over ranks are
  // needed. The result does not change after the units are made.
  bool cut() const;
  // Returns the segments of main gradients of `chosen` that this rank measures.
  std::vector<kernels::GradSegment> table_of(const ChosenParameters& chosen) const;
  std::shared_ptr<StepScalars> take_scalars();
  void reduce(const StepScalars& scalars, kernels::NormType type) const;
  // Returns "unit 'u', parameter 'u.weight'" for the first non-finite element on any rank. Returns
  // an empty string if all elements are finite.
  std::string name_first(const std::vector<double>& first_by_rank) const;
  // Returns the index of the unit and the index of the parameter in this unit that contain the
  // element at `position` on `rank`.
  std::pair<int, int> owner_of(int rank, int64_t position) const;

  ShardContext& context_;
  const std::vector<std::shared_ptr<EngineUnit>>& units_;
  Buffer scratch_;  // for the norm; as large as any table has needed
  std::vector<std::shared_ptr<StepScalars>> scalars_;  // a block with one reference is free
  std::vector<std::weak_ptr<GradientReport::Measurement>> reports_;
};

// The values of one measurement. All reports of the measurement share them, and any thread may read
// the reports. After the first read, a Measurement holds only the values, so a kept report holds no
// device memory.
struct GradientReport::Measurement {
  struct Values {
    double norm = 0;
    bool finite = true;
    std::string first_nonfinite;
  };
  // Returns the values. The first call waits for the device.
  // Errors: StateError if the engine was destroyed and the values could not be read before.
  Values read();
  // Tries to read the values one last time, and then drops the reference to the engine.
  void settle() noexcept;

  std::mutex mutex;
  const GradientMeasure* owner = nullptr;  // null after the engine's destruction
  std::shared_ptr<StepScalars> scalars;    // null after a read or the engine's destruction
  Stream* measured_on = nullptr;           // the kernels' stream; compute may change later
  std::optional<Values> values;
};

}  // namespace fsdp
