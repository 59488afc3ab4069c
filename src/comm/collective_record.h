// What one rank says about a collective, so that ranks can tell whether they do the same thing.
#pragma once

#include <fsdp/communicator.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace fsdp {

inline constexpr int kRecordedParts = 4;
inline constexpr int kLabelBytes = 48;  // with the closing zero

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
  std::array<char, kLabelBytes> label;
};

CollectiveRecord make_record(Operation operation, std::span<const CollectivePart> parts,
                             CollectiveTag tag, ReduceOp op = ReduceOp::kSum, int root = -1);

// Equal for equal records.
uint64_t fingerprint_of(const CollectiveRecord& record);

// "all_reduce (sum) of 12 float32 'norm' #7": everything that is compared.
std::string describe(const CollectiveRecord& record);

}  // namespace fsdp
