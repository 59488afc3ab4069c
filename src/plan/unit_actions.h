// What the policy of a pass (pass.h) asks of units. The engine moves bytes; the memory plan counts
// them.
#pragma once

#include <fsdp/options.h>

#include <cstdint>

namespace fsdp {

enum class ParameterState : uint8_t {
  kSharded,    // only the main shards exist; parameters throw
  kGathering,  // they are on their way to where they lie whole; parameters throw
  kUnsharded,  // parameters are seated and readable
};

enum class GradientState : uint8_t {
  kNone,       // no whole gradients exist
  kCapturing,  // the unit is open: gradients arrive in the reduce slot, or are lent
  kKept,       // closed without reducing (GradSync): they wait for the next pass
};

// kPrefetch: the unit is not needed yet, and may be left alone.
enum class Urgency : uint8_t { kDemand, kPrefetch };

// Units by index; the root is 0.
class UnitActions {
 public:
  virtual ~UnitActions() = default;

  virtual ParameterState parameters(int unit) const = 0;
  virtual GradientState gradients(int unit) const = 0;

  // kSharded -> kGathering. A prefetch returns false, having done nothing, where no slot is free.
  virtual bool unshard(int unit, Urgency urgency) = 0;
  // kGathering -> kUnsharded.
  virtual void wait_for_unshard(int unit) = 0;
  // kGathering or kUnsharded -> kSharded.
  virtual void reshard(int unit) = 0;

  // kNone or kKept -> kCapturing; nothing where the unit has no trainable parameter.
  virtual void open_gradients(int unit, GradientSync sync) = 0;
  // kCapturing -> kKept.
  virtual void keep_gradients(int unit) = 0;
  // kCapturing or kKept -> kNone. `across`: over the groups of ranks, too.
  virtual void reduce(int unit, bool across) = 0;
  // What was reduced within groups alone, over the groups; nothing where there is none.
  virtual void sum_across(int unit) = 0;
  // After a failed backward: any -> kNone, or kKept where earlier passes' gradients wait.
  virtual void abandon_gradients(int unit) = 0;
};

}  // namespace fsdp
