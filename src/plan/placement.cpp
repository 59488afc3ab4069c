#include "plan/placement.h"

#include "fsdp/error.h"

namespace fsdp {

Placements placements_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::kFullShard:
      return {Placement::kShard, Placement::kShard, Placement::kShard};
    case Strategy::kReplicate:
      return {Placement::kReplicate, Placement::kReplicate, Placement::kReplicate};
  }
  throw InvalidArgument({.what = "unknown strategy", .where = {}, .cause = {}, .hint = {}});
}

}  // namespace fsdp
