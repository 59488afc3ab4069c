// GradientMeasure: the norm of a step's gradients, the factor that clips them, and whether one of
// them is not finite.
//
// All of it is computed in the device's memory and is the same on every rank. Optimizers' kernels
// read it through pointers. The host waits for it only when a GradientReport is asked for a value.
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

// The scalars of one step, in one block of memory beside the main gradients.
class StepScalars {
 public:
  // `ranks`: the number of ranks over which they are reduced; `rank`: this one among them.
  StepScalars(const ShardContext& context, int ranks, int rank);

  // A kernels::GradNorm, then for each rank the position of its first element that is not finite
  // (see kernels::grad_norm). A rank writes its own position. All are float64, so that one
  // all_reduce reduces them together.
  struct Found {
    double* values;
    kernels::GradNorm* norm() const { return reinterpret_cast<kernels::GradNorm*>(values); }
    double* first(int rank) const { return values + kHead + rank; }
  };
  // Returns the number of float64 values in a Found.
  int64_t numel() const { return kHead + ranks_; }
  Found here() const { return {at<double>(0)}; }
  // Returns the values over all ranks; with one rank they are its own.
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
  // Reads the values. Waits for the work that the stream was given so far.
  Values read(Stream& stream) const;

 private:
  // The float64 values of a GradNorm.
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

// The measurements of an engine. Not thread-safe: the backward scheduler's mutex covers it.
class GradientMeasure {
 public:
  // Requires: both outlive it.
  GradientMeasure(ShardContext& context, const std::vector<std::shared_ptr<EngineUnit>>& units)
      : context_(context), units_(units) {}

  // A measurement: values for the caller, and pointers for kernels.
  struct Measured {
    GradientReport report;
    std::shared_ptr<const StepScalars> scalars;  // held until the kernels that read them are issued
  };
  // Measures the gradients of `chosen`, in one all_reduce if main shards are cut. The lowest of the
  // ranks that own the same slice measures it. An infinite `max_norm` clips nothing.
  // Errors: InvalidArgument for a norm_type that is not 1, 2 or infinity, or a max_norm that is
  // negative or NaN.
  Measured measure(double norm_type, double max_norm, const ChosenParameters& chosen);
  // Reads the values of all reports: their units, and with them the parameters' names, end next.
  void settle() noexcept;

 private:
  friend struct GradientReport::Measurement;
  // Returns whether main shards of some unit are cut. Constant once there are units.
  bool cut() const;
  // Returns the gradients that this rank measures.
  std::vector<kernels::GradSegment> table_of(const ChosenParameters& chosen) const;
  std::shared_ptr<StepScalars> take_scalars();
  void reduce(const StepScalars& scalars, kernels::NormType type) const;
  // Returns "unit 'u', parameter 'u.weight'" for the first element that is not finite on some rank;
  // empty if all are finite.
  std::string name_first(const std::vector<double>& first_by_rank) const;
  // Returns the indices of the unit, and of the parameter in it, whose element has that position on
  // `rank`.
  std::pair<int, int> owner_of(int rank, int64_t position) const;

  ShardContext& context_;
  const std::vector<std::shared_ptr<EngineUnit>>& units_;
  Buffer scratch_;  // of the norm, as large as any table has needed
  std::vector<std::shared_ptr<StepScalars>> scalars_;  // those with one reference are free
  std::vector<std::weak_ptr<GradientReport::Measurement>> reports_;
};

// The values of one measurement, shared by its reports, which any thread may read. Once read it
// holds values alone: a report that is kept holds no device memory.
struct GradientReport::Measurement {
  struct Values {
    double norm = 0;
    bool finite = true;
    std::string first_nonfinite;
  };
  // Returns the values; the first call waits for them.
  // Errors: StateError if the engine is gone and the values could not be read at its end.
  Values read();
  // Ends the connection to the engine, after a last attempt to read.
  void settle() noexcept;

  std::mutex mutex;
  const GradientMeasure* owner = nullptr;  // null: the engine is gone
  std::shared_ptr<StepScalars> scalars;    // null: read, or the engine is gone
  Stream* measured_on = nullptr;           // compute may have become another stream since
  std::optional<Values> values;
};

}  // namespace fsdp
