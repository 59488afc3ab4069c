// The record of a collective: one rank's description, which ranks compare.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace fsdp {

inline constexpr int kRecordedParts = 4;
inline constexpr int kLabelBytes = 48;  // in messages, with the terminating zero

// One rank's description of a collective. Plain bytes, as it resides in memory that processes
// share.
struct CollectiveRecord {
  struct Part {
    int64_t numel;
    DType dtype;
  };

  Operation operation;
  ReduceOp reduce_op;  // kSum where nothing is reduced
  int32_t root;        // -1 where there is none
  int32_t part_count;
  std::array<Part, kRecordedParts> parts;  // the first ones; parts_hash covers all
  uint64_t parts_hash;
  uint64_t sequence;
  uint64_t label_hash;  // hash of the full label
  uint64_t note_hash;   // 0: no annotation
  // Texts for messages: the end of a long label, because names of units differ there, and the
  // beginning of the annotation.
  std::array<char, kLabelBytes> label;
  decltype(CollectiveAnnotation::text) note;
};

// Returns this rank's record of a collective.
CollectiveRecord make_record(const Collective& collective);

// Returns a hash that is equal for equal records.
uint64_t fingerprint_of(const CollectiveRecord& record);
// Return hashes that are the same in all processes, for what is compared beside fingerprints.
uint64_t hash_of(std::string_view text);
uint64_t hash_of(uint64_t one, uint64_t other);

// Describes a record: "all_reduce (sum) of 12 float64 'gradient norm' #7 after 'optimizer step 7:
// lr 0.001'". Everything that is compared is in it, except the hidden part of a long label or
// annotation.
std::string describe(const CollectiveRecord& record);
// Describes two records, the lower rank first: "rank 0 issued all_reduce …, rank 1 issued barrier
// …". If the two texts are equal, it adds where the records differ.
std::string describe_difference(int rank, const CollectiveRecord& record, int other_rank,
                                const CollectiveRecord& other);

// Replaces the end of the full text in `field` by "…".
void mark_cut(std::span<char> field);

}  // namespace fsdp
