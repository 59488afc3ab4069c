// What a step decides from its gradients: their norm, the factor that clips them, and whether one
// is not finite.
//
// The decision is made in the device's memory and is the same on every rank. It is issued and not
// read: optimizers' kernels take it through pointers, and only a GradientReport that is asked for
// a value waits for it.
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

// The scalars of one step, in one block of device memory.
class StepScalars {
 public:
  // `ranks`: over how many they are reduced; `rank`: this one among them.
  StepScalars(const ShardContext& context, int ranks, int rank);

  // A kernels::GradNorm, and by rank the position of its first element that is not finite (see
  // kernels::grad_norm), of which this rank writes its own: all float64, to be reduced together.
  struct Found {
    double* values;
    kernels::GradNorm* norm() const { return reinterpret_cast<kernels::GradNorm*>(values); }
    double* first(int rank) const { return values + kHead + rank; }
  };
  int64_t numel() const { return kHead + ranks_; }
  Found here() const { return {at<double>(0)}; }
  // Over all ranks; with one they are this rank's.
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
  // Waits for what was issued to the stream so far.
  Values read(Stream& stream) const;

 private:
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

// Not thread-safe: the engine's mutex covers it.
class GradientMeasure {
 public:
  // Both live as long.
  GradientMeasure(ShardContext& context, const std::vector<std::shared_ptr<EngineUnit>>& units)
      : context_(context), units_(units) {}

  // What was measured, for people and for kernels.
  struct Measured {
    GradientReport report;
    std::shared_ptr<const StepScalars> scalars;  // until the kernels that read them are issued
  };
  // Measures the gradients of `chosen`. One all_reduce where main shards are cut: of what several
  // ranks hold alike, the lowest of them tells. `max_norm` may be infinite: nothing is clipped.
  // Errors: InvalidArgument for a norm_type that is not 1, 2 or infinity, or a max_norm that is
  // negative or NaN.
  Measured measure(double norm_type, double max_norm, const ChosenParameters& chosen);
  // Reads what reports have not been asked for yet: the units go, and with them the names.
  void settle() noexcept;

 private:
  friend struct GradientReport::Measurement;
  // Main shards of some unit are cut. Constant once there are units.
  bool cut() const;
  // This rank's gradients that it tells of.
  std::vector<kernels::GradSegment> table_of(const ChosenParameters& chosen) const;
  std::shared_ptr<StepScalars> take_scalars();
  void reduce(const StepScalars& scalars, kernels::NormType type) const;
  // "unit 'u', parameter 'u.weight'" of the first element of which a rank says that it is not
  // finite.
  std::string name_first(const std::vector<double>& first_by_rank) const;
  // Index of the unit, and of the parameter in it.
  std::pair<int, int> owner_of(int rank, int64_t position) const;

  ShardContext& context_;
  const std::vector<std::shared_ptr<EngineUnit>>& units_;
  Buffer scratch_;  // of the norm, as large as the largest needed
  std::vector<std::shared_ptr<StepScalars>> scalars_;  // those that only we hold are free
  std::vector<std::weak_ptr<GradientReport::Measurement>> reports_;
};

// Shared by the reports of one measurement, which any threads may read. Once read it holds values
// alone: who keeps reports keeps no device memory.
struct GradientReport::Measurement {
  struct Values {
    double norm = 0;
    bool finite = true;
    std::string first_nonfinite;
  };
  // Errors: StateError if the engine has gone and the values could not be read then.
  Values read();
  // The engine goes: after a last attempt to read.
  void settle() noexcept;

  std::mutex mutex;
  const GradientMeasure* owner = nullptr;  // null: the engine is gone
  std::shared_ptr<StepScalars> scalars;    // null: read, or the engine is gone
  Stream* measured_on = nullptr;           // compute may be another one since
  std::optional<Values> values;
};

}  // namespace fsdp
