// A ParameterSource is the memory of a unit's whole parameters while they are readable. The unit's
// collectives determine its source:
//
//   GatheredSlot        a slot, gathered for each use (ZeRO-3): from main shards, or from resident
//                       pieces of parameters (HFSDP, hpZ); with main shards on the host also on one
//                       rank
//   MappedShards        the ranks' shards, mapped side by side and read in place (ZeRO-3 in
//                       processes)
//   GatheredResident    a whole resident copy, gathered again after main shards have changed
//                       (ZeRO-1, ZeRO-2; DDP with main shards on the host)
//   CastResident        a whole resident copy in a lower type, cast from whole main shards
//   MainShard           the main shards themselves, whole and in the type that forward reads (one
//                       rank, DDP)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plan/unit_actions.h"
#include "shard/main_shards.h"

namespace fsdp {

// The changes of main shards since the last look at them.
struct MainChange {
  bool known = false;       // this rank's have changed
  bool possible = false;    // views exist: another rank's may have changed, unseen here
  bool at_forward = false;  // a forward begins now, on all ranks
};

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  // Issues the work that makes the parameters whole. Returns false, without effect, if a prefetch
  // finds no free slot.
  virtual bool begin(Urgency /*urgency*/) { return true; }
  // Lets compute wait for that work. Compute may read the parameters from then on.
  virtual void wait() {}
  // Ends the use. `waited` false: the work of begin may still be in flight.
  virtual void end(bool /*waited*/) {}
  // Returns the whole memory of a segment. Valid from wait to end.
  virtual std::byte* whole(int segment) const = 0;

  // Returns the size of the slot that begin acquires, or 0.
  virtual int64_t slot_bytes() const { return 0; }
  // Returns the size of copies that exist beside main shards at all times.
  virtual int64_t resident_bytes() const { return 0; }
  // Returns true if a write to the whole parameters is a write to the main shards.
  virtual bool keeps_writes() const { return false; }
  // Returns a parameter that was written without a change of its version counter, and undoes the
  // write.
  virtual std::optional<int> take_stray_write() { return std::nullopt; }

  // Returns the resident copy, in the segment's dtype, of main shards that are whole: a writer of
  // main shards may write it as well. Null if there is none.
  virtual std::byte* copy_of_main(int /*segment*/) const { return nullptr; }
  // Announces a change of the main shards, before their versions change. `copies_written`: each
  // copy_of_main has been written with them.
  virtual void main_changes(bool /*copies_written*/) {}
  // Updates resident copies after a change.
  virtual void follow_main(const MainChange& /*change*/) {}
};

std::unique_ptr<ParameterSource> make_parameter_source(const UnitContext& unit, MainShards& main);
// Makes a source whose whole memory is this rank's own and may be written. Null if `usual` is such
// a source.
std::unique_ptr<ParameterSource> make_own_copy_source(const UnitContext& unit, MainShards& main,
                                                      const ParameterSource& usual);

}  // namespace fsdp
