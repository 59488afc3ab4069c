// UnitActions is the interface through which the policy of a pass (pass.h) acts on units. The
// engine implements it with buffers and collectives. The memory plan implements it with counters.
#pragma once

#include <fsdp/options.h>

#include <cstdint>

namespace fsdp {

enum class ParameterState : uint8_t {
  kSharded,    // only the main shards exist; an access to a parameter throws
  kGathering,  // a gather into whole memory is issued; an access to a parameter throws
  kUnsharded,  // parameters are bound to whole memory and readable
};

enum class GradientState : uint8_t {
  kNone,       // no whole gradients exist
  kCapturing,  // the unit is open: gradients are captured as they arrive
  kKept,       // closed without a reduction (GradSync): whole gradients stay for a later pass
};

// The urgency of a gather. kDemand: compute needs the unit now. kPrefetch: compute needs the unit
// later, so the gather may be skipped.
enum class Urgency : uint8_t { kDemand, kPrefetch };

// The state and the transitions of a model's units. Units are identified by index. The root is unit
// 0.
class UnitActions {
 public:
  virtual ~UnitActions() = default;

  virtual ParameterState parameters(int unit) const = 0;
  virtual GradientState gradients(int unit) const = 0;

  // Issues the gather: kSharded -> kGathering. Returns false, without effect, if a prefetch finds
  // no free slot.
  virtual bool unshard(int unit, Urgency urgency) = 0;
  // Lets compute wait for the gather and binds the parameters: kGathering -> kUnsharded.
  virtual void wait_for_unshard(int unit) = 0;
  // Unbinds the parameters and releases the slot: kGathering or kUnsharded -> kSharded.
  virtual void reshard(int unit) = 0;

  // Acquires memory for gradients: kNone or kKept -> kCapturing. Does nothing for a unit without a
  // trainable parameter.
  virtual void open_gradients(int unit, GradientSync sync) = 0;
  // Keeps whole gradients without a reduction: kCapturing -> kKept.
  virtual void keep_gradients(int unit) = 0;
  // Reduces gradients into the main gradients: kCapturing or kKept -> kNone. If `across`, the
  // gradients are also summed over the groups of ranks.
  virtual void reduce(int unit, bool across) = 0;
  // Sums main gradients over the groups if they were reduced only within groups. Otherwise does
  // nothing.
  virtual void sum_across(int unit) = 0;
  // Updates the unit's main shards from its complete main gradients, and frees these gradients.
  // Called only with Options::optimizer_in_backward.
  virtual void update(int unit) = 0;
  // Drops the gradients that a failed backward captured: kCapturing -> kNone. Kept gradients stay
  // kKept.
  virtual void abandon_gradients(int unit) = 0;
};

}  // namespace fsdp
