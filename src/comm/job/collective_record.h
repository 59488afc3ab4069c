// What one rank says about a collective, so that ranks can tell whether they do the same thing.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace fsdp {

inline constexpr int kRecordedParts = 4;
inline constexpr int kLabelBytes = 48;  // that are shown, with the closing zero

// Plain bytes: it lies in memory that processes share.
struct CollectiveRecord {
  struct Part {
    int64_t numel;
    DType dtype;
  };

  Operation operation;
  ReduceOp reduce_op;  // kSum where nothing is reduced
  int32_t root;        // -1 where there is none
  int32_t part_count;
  std::array<Part, kRecordedParts> parts;  // the first ones; all of them are in parts_hash
  uint64_t parts_hash;
  uint64_t sequence;
  uint64_t label_hash;  // of all of it
  uint64_t note_hash;   // 0: nothing was noted
  // What messages show: the end of a long label, where names of units differ; a note's beginning.
  std::array<char, kLabelBytes> label;
  decltype(CollectiveAnnotation::text) note;
};

CollectiveRecord make_record(const Collective& collective);

// Equal for equal records.
uint64_t fingerprint_of(const CollectiveRecord& record);
// What a record is held against beside its fingerprint: the same in all processes.
uint64_t hash_of(std::string_view text);
uint64_t hash_of(uint64_t one, uint64_t other);

// "all_reduce (sum) of 12 float64 'gradient norm' #7 after 'optimizer step 7: lr 0.001'": all that
// is compared, but for what of a long label or note is not shown.
std::string describe(const CollectiveRecord& record);
// "rank 0 issued all_reduce …, rank 1 issued barrier …", and what differs if that is not shown.
// The lower rank comes first.
std::string describe_difference(int rank, const CollectiveRecord& record, int other_rank,
                                const CollectiveRecord& other);

// Ends the full text of `field` with "…".
void mark_cut(std::span<char> field);

}  // namespace fsdp
