// What every communicator refuses, and how a large all_reduce is shared.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/communicator.h"

namespace fsdp {

// Errors: InvalidArgument for parts that no rank may use.
void require_valid(const Collective& collective, int size);

// Errors: InvalidArgument for a negative color of a split.
void require_color(int color, std::string_view where);

struct Share {
  int64_t begin = 0;
  int64_t end = 0;
};

// The elements that `rank` reduces for all: whole cache lines of any dtype.
Share share_of(int rank, int size, int64_t numel);

}  // namespace fsdp
