// A ParameterSource provides the memory of a unit's whole parameters while they are readable. The
// unit's collectives determine which source the unit has:
// - GatheredSlot gathers into a slot for each use. It gathers main shards (ZeRO-3, or one rank with
//   main shards on the host) or resident pieces of parameters (HFSDP, hpZ).
// - MappedShards maps the ranks' shards side by side, and forward reads them in place (ZeRO-3 in
//   processes).
// - GatheredResident keeps a whole resident copy, which is gathered again after main shards have
//   changed (ZeRO-1, ZeRO-2, DDP with main shards on the host).
// - CastResident keeps a whole resident copy in a lower type, which is cast from whole main shards.
// - MainShard is the main shards themselves, which are whole and in the type that forward reads
//   (one rank, DDP).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plan/unit_actions.h"
#include "shard/main_shards.h"

namespace fsdp {

// The changes of main shards since the last check.
struct MainChange {
  bool known = false;       // this rank's main shards have changed
  bool possible = false;    // views exist, so another rank's main shards may have changed
  bool at_forward = false;  // a forward begins now, on all ranks
};

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  // Issues the work that makes the parameters whole. Returns false, without effect, if the urgency
  // is kPrefetch and no slot is free.
  virtual bool begin(Urgency /*urgency*/) { return true; }
  // Makes the compute stream wait for the work that begin() has issued. Then compute may read the
  // parameters.
  virtual void wait() {}
  // Ends the use of the parameters' memory. `waited` is false if wait() was not called. The work
  // that begin() has issued may then be in flight.
  virtual void end(bool /*waited*/) {}
  // Returns the whole memory of a segment. The memory is valid from wait to end.
  virtual std::byte* whole(int segment) const = 0;

  // Returns the size of the slot that begin acquires, or 0.
  virtual int64_t slot_bytes() const { return 0; }
  // Returns the size of copies that exist at all times in addition to main shards.
  virtual int64_t resident_bytes() const { return 0; }
  // Returns true if a write to the whole parameters also writes the main shards.
  virtual bool keeps_writes() const { return false; }
  // Returns the first parameter that was written without a change of its version counter, or
  // nothing if there is none. Undoes all such writes.
  virtual std::optional<int> take_stray_write() { return std::nullopt; }

  // Returns the resident copy of whole main shards, in the segment's dtype. Null if there is no
  // such copy. Code that writes the main shards may write the copy as well.
  virtual std::byte* copy_of_main(int /*segment*/) const { return nullptr; }
  // Notes that the caller is about to count a change of the main shards. Must be called before
  // their versions change. `copies_written` is true if the caller has also written the change to
  // every copy_of_main.
  virtual void main_changes(bool /*copies_written*/) {}
  // Updates resident copies after a change of the main shards, or makes the next begin() update
  // them.
  virtual void follow_main(const MainChange& /*change*/) {}
};

std::unique_ptr<ParameterSource> make_parameter_source(const UnitContext& unit, MainShards& main);
// Makes a source whose whole memory belongs to this rank and may be written. Returns null if
// `usual` already is such a source.
std::unique_ptr<ParameterSource> make_own_copy_source(const UnitContext& unit, MainShards& main,
                                                      const ParameterSource& usual);

}  // namespace fsdp
