// Where a unit's parameters lie whole while they can be read. A source answers to begin, wait, end;
// which one a unit has follows from its moves:
//
//   GatheredSlot        gathered for each use, into a slot that is borrowed (ZeRO-3): from main
//                       shards, or from larger pieces of parameters that stay (HFSDP, hpZ); with
//                       main shards on the host also on one rank
//   MappedShards        the ranks' shards side by side, read where they lie (ZeRO-3, processes)
//   GatheredResident    a whole copy that stays, gathered anew once main shards have changed
//                       (ZeRO-1, ZeRO-2; DDP with main shards on the host)
//   CastResident        a whole copy in a lower type of main shards that are whole themselves
//   MainShard           the main shards, whole and in the type that forward reads (one rank, DDP)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plan/unit_actions.h"
#include "shard/main_shards.h"

namespace fsdp {

// What is known of main shards since the last look at them.
struct MainChange {
  bool known = false;       // this rank's have changed
  bool possible = false;    // somebody holds views: on some rank they may have, unseen here
  bool at_forward = false;  // one begins now, on all ranks
};

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  // Issues what makes the parameters whole. False, having done nothing: a prefetch found no room.
  virtual bool begin(Urgency /*urgency*/) { return true; }
  // Compute waits for it; from then on they may be read.
  virtual void wait() {}
  // Nobody reads them any more. `waited`: else what begin has issued may be still under way.
  virtual void end(bool /*waited*/) {}
  // Of a segment, from wait to end.
  virtual std::byte* whole(int segment) const = 0;

  // Of the slot that begin takes; 0 where it takes none.
  virtual int64_t slot_bytes() const { return 0; }
  // Kept beside main shards at all times.
  virtual int64_t resident_bytes() const { return 0; }
  // What is written to the whole parameters reaches the main shards.
  virtual bool keeps_writes() const { return false; }
  // A parameter that was written where no version counter tells; the write is undone.
  virtual std::optional<int> take_stray_write() { return std::nullopt; }

  // A copy in the segment's dtype that whoever changes main shards may write along with them; null
  // where there is none.
  virtual std::byte* copy_of_main(int /*segment*/) const { return nullptr; }
  // The main shards change, and each copy_of_main with them if `copies_written`. Before their
  // versions do.
  virtual void main_changes(bool /*copies_written*/) {}
  // Makes its copies follow.
  virtual void follow_main(const MainChange& /*change*/) {}
};

std::unique_ptr<ParameterSource> make_parameter_source(const UnitContext& unit, MainShards& main);
// One whose whole parameters are this rank's own, to be written: null where that of
// make_parameter_source is such a one.
std::unique_ptr<ParameterSource> make_own_copy_source(const UnitContext& unit, MainShards& main,
                                                      const ParameterSource& usual);

}  // namespace fsdp
