// Remedies are changes that lower a step's device memory. Out-of-memory errors and fsdp-plan quote
// them.
#pragma once

#include <fsdp/options.h>

#include <string_view>
#include <vector>

namespace fsdp {

enum class RemedyKind : uint8_t {
  kOption,      // a change of Options: `apply`
  kReduceMore,  // backwards that reduce instead of keeping whole gradients
  kSmallerBatch,
  kMoreRanks,
};

struct Remedy {
  RemedyKind kind = RemedyKind::kOption;
  std::string_view text;                      // "prefetch_units = 0"
  std::string_view flag;                      // "--prefetch 0"; empty if no flag does it
  void (*apply)(Options& options) = nullptr;  // kOption only
};

// The circumstances on which remedies depend, besides the options.
struct RemedyCase {
  bool gathers = true;  // parameters are gathered into slots
  bool one_rank = false;
  bool reduces = true;        // false under GradSync: backwards keep whole gradients
  bool for_tensors = true;    // LibTorch's tensors count, not only the engine's buffers
  bool host_is_other = true;  // the host's memory does not count
};

// Returns the remedies that these options do not use yet, cheapest first: first those that cost
// communication, then compute, then transfers to the host, then those that change what is computed.
std::vector<Remedy> remedies(const Options& options, const RemedyCase& of);

}  // namespace fsdp
