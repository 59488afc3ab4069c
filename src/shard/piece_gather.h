// PieceGather gathers a unit's segments by one collective after the other. Each collective leaves a
// rank with the pieces of an axis's ranks side by side.
#pragma once

#include <cstddef>
#include <vector>

#include "shard/unit_context.h"

namespace fsdp {

class PieceGather {
 public:
  explicit PieceGather(const UnitContext& unit) : unit_(unit) { runs_.reserve(unit.segments()); }

  // Adds a segment: this rank's piece is at `data`, and element `place_begin` of the result will be
  // at `place`. `data` may be the piece's own place in the result (in place).
  void add(const Piece& piece, DType dtype, const void* data, std::byte* place,
           int64_t place_begin);
  // Issues the gathers on `stream`. Collective. Called once.
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
