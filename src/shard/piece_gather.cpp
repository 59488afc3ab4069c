#include "shard/piece_gather.h"

namespace fsdp {

void PieceGather::add(const Piece& piece, DType dtype, const void* data, std::byte* place,
                      int64_t place_begin) {
  runs_.push_back({piece, dtype, data, place, place_begin});
}

void PieceGather::issue(const std::vector<AxisCollective>& collectives, Stream& stream) {
  ShardContext& shared = unit_.shared;
  std::vector<CollectivePart> parts;
  parts.reserve(runs_.size());
  // The pieces of an axis's ranks are adjacent ([Note: pieces of pieces] in placement.h). So the
  // result of one collective is the piece that the next collective sends in place.
  for (const AxisCollective& move : collectives) {
    parts.clear();
    int64_t numel = 0;
    for (Run& run : runs_) {
      numel += run.piece.numel;
      // The collective gathers the pieces of all ranks of the axis. The first one is that of rank
      // 0.
      const int64_t begin = run.piece.begin - shared.mesh.rank(move.axis) * run.piece.numel;
      std::byte* all = run.place + (begin - run.place_begin) * size_of(run.dtype);
      parts.push_back({run.data, all, run.piece.numel, run.dtype});
      run.data = all;
      run.piece = {.begin = begin, .numel = run.piece.numel * shared.mesh.size(move.axis)};
    }
    shared.comms.count_sent(move, parts);
    shared.comms.gather(move.axis).all_gather(parts, unit_.next_tag(move.operation, numel), stream);
    ++shared.comms.all_gathers;
  }
}

}  // namespace fsdp
