// The record of a collective: a rank's description of the collective. Ranks compare their records.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace fsdp {

inline constexpr int kRecordedParts = 4;
inline constexpr int kLabelBytes = 48;  // size of a label in messages, with the terminating zero

// One rank's description of a collective. It consists of plain bytes, so that it can be in memory
// that processes share.
struct CollectiveRecord {
  struct Part {
    int64_t numel;
    DType dtype;
  };

  Operation operation;
  ReduceOp reduce_op;  // kSum if nothing is reduced
  int32_t root;        // -1 if the operation has no root
  int32_t part_count;
  std::array<Part, kRecordedParts> parts;  // the first parts; parts_hash covers all parts
  uint64_t parts_hash;
  uint64_t sequence;
  uint64_t label_hash;  // hash of the full label
  uint64_t note_hash;   // 0: no annotation
  // Texts for messages. `label` holds the end of a long label, because names of units differ at the
  // end. `note` holds the beginning of the annotation.
  std::array<char, kLabelBytes> label;
  decltype(CollectiveAnnotation::text) note;
};

// Returns this rank's record of a collective.
CollectiveRecord make_record(const Collective& collective);

// Returns a hash of the record. Equal records have equal hashes.
uint64_t fingerprint_of(const CollectiveRecord& record);
// Return hashes that are equal in all processes. Used for values that ranks compare besides
// fingerprints.
uint64_t hash_of(std::string_view text);
uint64_t hash_of(uint64_t one, uint64_t other);

// Describes a record: "all_reduce (sum) of 12 float64 'gradient norm' #7 after 'optimizer step 7:
// lr 0.001'". The text contains everything that ranks compare, except the hidden part of a long
// label or annotation.
std::string describe(const CollectiveRecord& record);
// Describes two records, the lower rank first: "rank 0 issued all_reduce …, rank 1 issued barrier
// …". If the two texts are equal, the result also says in which respect the records differ.
std::string describe_difference(int rank, const CollectiveRecord& record, int other_rank,
                                const CollectiveRecord& other);

// Marks in `field` that the text was cut: replaces its end by "…".
void mark_cut(std::span<char> field);

}  // namespace fsdp
