// Gathers of a unit's segments, one collective after the other: each leaves a rank with the pieces
// of an axis's ranks side by side.
#pragma once

#include <cstddef>
#include <vector>

#include "shard/unit_context.h"

namespace fsdp {

class PieceGather {
 public:
  explicit PieceGather(const UnitContext& unit) : unit_(unit) { runs_.reserve(unit.segments()); }

  // What this rank has of a segment, which lies at `data`, and where the result is to lie: `place`
  // is that of element `place_begin` of the segment. `data` may be its own place there.
  void add(const Piece& piece, DType dtype, const void* data, std::byte* place,
           int64_t place_begin);
  // `moves` are gathers. Collective. Once.
  void issue(const std::vector<AxisCollective>& collectives, Stream& stream);

 private:
  struct Run {
    Piece piece;
    DType dtype;
    const void* data;
    std::byte* place;
    int64_t place_begin;
  };
  const UnitContext& unit_;
  std::vector<Run> runs_;
};

}  // namespace fsdp
