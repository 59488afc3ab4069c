// What every communicator refuses, and how a large all_reduce is shared.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "comm/job/collective_record.h"

namespace fsdp {

// Errors: InvalidArgument for parts that no rank may use.
void require_valid(std::span<const CollectivePart> parts, const CollectiveRecord& record, int size);

struct Share {
  int64_t begin = 0;
  int64_t end = 0;
};

// The elements that `rank` reduces for all: whole cache lines of any dtype.
Share share_of(int rank, int size, int64_t numel);

}  // namespace fsdp
