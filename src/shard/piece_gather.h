// PieceGather gathers a unit's segments by a list of collectives, one after the other. After each
// collective a rank has the pieces of all ranks of the collective's axis side by side.
#pragma once

#include <cstddef>
#include <vector>

#include "shard/unit_context.h"

namespace fsdp {

class PieceGather {
 public:
  explicit PieceGather(const UnitContext& unit) : unit_(unit) { runs_.reserve(unit.segments()); }

  // Adds a segment. This rank's piece is at `data`. `place` is the address for element
  // `place_begin` of the result. The gather is in place if `data` is the position of the piece in
  // the result.
  void add(const Piece& piece, DType dtype, const void* data, std::byte* place,
           int64_t place_begin);
  // Issues the gathers on `stream`. Collective. May be called only once.
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
